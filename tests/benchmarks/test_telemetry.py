"""What following a turn costs: every case is measured in every round, and does its work.

1. A case with traces makes two spans a turn where the turn is sampled, and none where it is not.
2. The table has a figure for each case.
"""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from benchmarks.telemetry import SAMPLED, UNSAMPLED, Follower, follow_turn, main, run
from turnkeeper.tracing.spans import OtelTracing


@pytest.mark.parametrize(("headers", "spans"), [(SAMPLED, 2), (UNSAMPLED, 0)])
def test_a_turn_makes_its_spans(headers: dict[str, str], spans: int) -> None:
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(TracerProvider(shutdown_on_exit=False), SimpleSpanProcessor(exporter))
    follow_turn(Follower(name="x", tracing=tracing, read=tracing.read, trace=headers), 0)
    assert len(exporter.get_finished_spans()) == spans


def test_every_case_has_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    figures = run(rounds=1, count=2)
    assert all(value > 0 for values in figures.values() for value in values)
    main(rounds=1, count=2)
    shown = capsys.readouterr().out
    assert all(name in shown for name in figures)
