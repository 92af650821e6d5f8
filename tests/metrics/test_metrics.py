"""What a server counts.

1. Events and reports become counts; two servers in one process do not share them.
2. A turn's report becomes its label, its end, its tokens and the time of each phase; a turn that was not recorded has
   no label and no tokens.
3. Engines are told apart by their URL, which never shows a user or a password.
4. Gauges are read when metrics are asked for, and not before.
"""

import re
from math import isnan
from typing import Any

import pytest

from samples.builders import Story
from turnkeeper.core import Cause, DropReason, FinishReason, Label, Linear
from turnkeeper.core.event import SessionOpened, TokensDropped
from turnkeeper.errors import EngineTimeoutError
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.metrics import Metrics, name_engine
from turnkeeper.metrics.metrics import read_version
from turnkeeper.telemetry import (
    EngineCallEnded,
    EngineChanged,
    PauseChanged,
    SamplesCollected,
    TurnEnd,
    TurnEnded,
    TurnTimes,
)


def read_value(metrics: Metrics, sample: str) -> float | None:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", metrics.render().decode(), re.MULTILINE)
    return float(found[1]) if found else None


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


URL = "http://a:1"


def end_turn(**fields: Any) -> TurnEnded:
    known: dict[str, Any] = {
        "at": 0.0,
        "session_id": SessionId("0" * 32),
        "number": 0,
        "end": TurnEnd.FAILED,
        "dialect": "chat",
        "times": TurnTimes(rendering_s=0.25, gate_s=2.0, engine_s=30.0),
        "prompt_tokens": 100,
        "sampled_tokens": 5,
        "engine_calls": 1,
    }
    return TurnEnded(**known | fields)


RECORDED: dict[str, Any] = {
    "end": TurnEnd.RECORDED,
    "turn_id": TurnId(3),
    "label": Label.BRANCH,
    "cause": Cause.COMPACTED,
    "finish_reason": FinishReason.STOP,
    "cached_tokens": 40,
}


def test_a_recorded_turn_is_counted_by_label_and_cause_with_its_tokens_and_phases() -> None:
    metrics = Metrics()
    metrics.record_report(end_turn(**RECORDED))
    assert read_value(metrics, 'turnkeeper_turn_labels_total{cause="compacted",label="branch"}') == 1
    assert read_value(metrics, 'turnkeeper_turns_ended_total{end="recorded"}') == 1
    assert read_value(metrics, "turnkeeper_prompt_tokens_total") == 100
    assert read_value(metrics, "turnkeeper_cached_tokens_total") == 40
    for phase, seconds in (("rendering", 0.25), ("gate", 2.0), ("engine", 30.0), ("held", 0.0)):
        assert read_value(metrics, f'turnkeeper_turn_phase_seconds_sum{{phase="{phase}"}}') == seconds
        assert read_value(metrics, f'turnkeeper_turn_phase_seconds_count{{phase="{phase}"}}') == 1


def test_a_failed_turn_is_counted_as_failed_alone() -> None:
    metrics = Metrics()
    metrics.record_report(end_turn())
    assert read_value(metrics, 'turnkeeper_turns_ended_total{end="failed"}') == 1
    assert read_value(metrics, "turnkeeper_prompt_tokens_total") == 0
    assert "turnkeeper_turn_labels_total{" in metrics.render().decode()
    assert not re.search(r"^turnkeeper_turn_labels_total.* 1\.0$", metrics.render().decode(), re.MULTILINE)


CALLS = {
    "answered": EngineCallEnded(at=0, url=URL, seconds=2.0),
    "given_up": EngineCallEnded(at=0, url=URL, seconds=2.0, is_cancelled=True),
    "engine_timeout": EngineCallEnded(at=0, url=URL, seconds=2.0, error=EngineTimeoutError("x")),
    "other": EngineCallEnded(at=0, url=URL, seconds=2.0, error=ValueError("x")),
}


@pytest.mark.parametrize(("outcome", "report"), CALLS.items(), ids=CALLS)
def test_a_call_is_counted_at_its_engine_by_its_outcome(outcome: str, report: EngineCallEnded) -> None:
    metrics = Metrics([URL])
    metrics.record_report(report)
    assert read_value(metrics, f'turnkeeper_engine_calls_total{{engine="{URL}",outcome="{outcome}"}}') == 1
    assert read_value(metrics, f'turnkeeper_engine_call_seconds_sum{{engine="{URL}"}}') == 2


def change_engine(state: str, version: str | None, before: str | None) -> EngineChanged:
    return EngineChanged(
        at=0, url=URL, state=state, state_before=None, weight_version=version, weight_version_before=before
    )


def test_an_engine_has_one_state_and_its_weight_version() -> None:
    metrics = Metrics([URL])
    for state, version, before in (("serving", "7", None), ("paused", "7", "7"), ("unreachable", "12", "7")):
        metrics.record_report(change_engine(state, version, before))
    states = {
        state: read_value(metrics, f'turnkeeper_engine_status{{engine="{URL}",state="{state}"}}')
        for state in ("serving", "paused", "unreachable")
    }
    assert states == {"serving": 0, "paused": 0, "unreachable": 1}
    assert read_value(metrics, f'turnkeeper_engine_weight_version{{engine="{URL}"}}') == 12
    assert read_value(metrics, f'turnkeeper_engine_weight_changes_total{{engine="{URL}"}}') == 1


@pytest.mark.parametrize(("version", "value"), [("0", 0.0), ("41", 41.0)])
def test_a_whole_number_is_the_value_of_a_version(version: str, value: float) -> None:
    assert read_version(version) == value


@pytest.mark.parametrize("version", [None, "", "default", "v7", "-1", "1.5", "\u0663"])
def test_any_other_version_has_no_value(version: str | None) -> None:
    assert isnan(read_version(version))


def test_a_pause_is_observed_when_it_has_ended() -> None:
    metrics = Metrics()
    metrics.record_report(PauseChanged(at=0, is_paused=True, mode="abort"))
    assert read_value(metrics, "turnkeeper_paused") == 1
    assert read_value(metrics, 'turnkeeper_pause_seconds_count{mode="abort"}') == 0
    metrics.record_report(PauseChanged(at=9, is_paused=False, mode="abort", seconds=9.0))
    metrics.record_report(PauseChanged(at=9, is_paused=False, mode=None, seconds=1.0))
    assert read_value(metrics, "turnkeeper_paused") == 0
    assert read_value(metrics, 'turnkeeper_pause_seconds_sum{mode="abort"}') == 9
    assert read_value(metrics, 'turnkeeper_pause_seconds_sum{mode="observed"}') == 1


def test_a_collect_has_its_time_and_its_size() -> None:
    metrics = Metrics()
    metrics.record_report(
        SamplesCollected(
            at=0, session_id=SessionId("0" * 32), samples=3, trainable_tokens=9, size_bytes=1 << 20, seconds=0.2
        )
    )
    assert read_value(metrics, "turnkeeper_samples_collected_total") == 3
    assert read_value(metrics, "turnkeeper_collect_seconds_sum") == 0.2
    assert read_value(metrics, 'turnkeeper_collect_bytes_bucket{le="1.048576e+06"}') == 1


ENGINES = {
    "http://a:1": "http://a:1",
    "http://a:1/": "http://a:1",
    "http://mallory:secret@a:1/": "http://a:1",
    "http://mallory:sec@ret@a:1/v1/": "http://a:1/v1",
}


@pytest.mark.parametrize(("url", "name"), ENGINES.items())
def test_an_engine_is_named_by_its_url_without_credentials(url: str, name: str) -> None:
    assert name_engine(url) == name
    text = Metrics([url]).render().decode()
    assert f'engine="{name}"' in text
    assert "mallory" not in text
