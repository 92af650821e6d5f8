"""What a server counts.

1. The catalog's names are unique, carry their unit, and are all there to be read.
2. Events of sessions become counts; two servers in one process do not share them.
"""

import re

import pytest

from samples.builders import Story
from turnkeeper.core import DropReason, Linear
from turnkeeper.core.event import SessionOpened, TokensDropped
from turnkeeper.metrics import METRICS, MetricKind, Metrics


def read_value(metrics: Metrics, sample: str) -> float | None:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", metrics.render().decode(), re.MULTILINE)
    return float(found[1]) if found else None


def test_names_are_unique() -> None:
    assert len({row.name for row in METRICS}) == len(METRICS)


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.name)
def test_every_metric_is_there_and_explained(row: object) -> None:
    text = Metrics().render().decode()
    suffix = "_total" if row.kind is MetricKind.COUNTER else ""
    assert f"# HELP {row.name}{suffix} {row.help}" in text


def test_a_lost_call_and_lost_tokens_are_counted_apart() -> None:
    metrics = Metrics()
    metrics.record(TokensDropped(at=0, reason=DropReason.CLIENT_GONE, sampled_tokens=None))
    metrics.record(TokensDropped(at=0, reason=DropReason.CLIENT_GONE, sampled_tokens=7))
    assert read_value(metrics, 'turnkeeper_calls_dropped_total{reason="client_gone"}') == 1
    assert read_value(metrics, 'turnkeeper_tokens_dropped_total{reason="client_gone"}') == 7
    assert read_value(metrics, "turnkeeper_tokens_sampled_total") == 7


def test_two_servers_do_not_share_numbers() -> None:
    one, other = Metrics(), Metrics()
    one.record(SessionOpened(at=0, policy=Linear(), matcher="strict", turn_limit=None))
    assert read_value(one, "turnkeeper_sessions_created_total") == 1
    assert read_value(other, "turnkeeper_sessions_created_total") == 0


def test_a_gauge_is_read_when_it_is_asked_for() -> None:
    metrics, values = Metrics(), [3.0, 5.0]
    metrics.register_gauge("turnkeeper_sessions", lambda: values.pop(0))
    assert read_value(metrics, "turnkeeper_sessions") == 3
    assert read_value(metrics, "turnkeeper_sessions") == 5


def test_equal_rows_are_counted_over_all_turns() -> None:
    metrics, story = Metrics(), Story()
    turn = story.say([1], [2, 3], marks={"rows_equal": 7})
    story.say([4], [5], after=turn, marks={"rows_equal": 9})
    for event in story.session.events:
        metrics.record(event)
    assert read_value(metrics, "turnkeeper_equal_rows_total") == 16
