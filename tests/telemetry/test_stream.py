"""The stream of reports: a reader that fails changes nothing for the others, and its failure is logged."""

import logging

import pytest

from turnkeeper.telemetry import PauseChanged, Report, ReportStream


def test_a_reader_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Report] = []

    def fail(_: Report) -> None:
        raise ValueError("full")

    report = PauseChanged(at=0.0, is_paused=True, mode="abort")
    with caplog.at_level(logging.ERROR, logger="turnkeeper.telemetry"):
        ReportStream([fail, seen.append]).publish(report)
    assert seen == [report]
    assert "a reader of reports failed at PauseChanged" in caplog.text
