"""One line for each report.

1. Every kind of report has a line, named as the report; a kind that readers do not know is left out.
2. A line says in keys what the report holds, errors by their codes.
3. What goes wrong at the server or at an engine is a warning; turns, sessions and changes are info, beginnings debug.
"""

import logging
from collections.abc import Callable
from typing import Any, cast, get_args

import pytest

from turnkeeper.core import Cause, FinishReason, Label
from turnkeeper.errors import EngineError, HistoryDivergedError
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.logs import LogEvent, log_report
from turnkeeper.logs.reports import LINES
from turnkeeper.telemetry import (
    EngineCallEnded,
    EngineChanged,
    PauseChanged,
    Report,
    RequestFailed,
    RouteChanged,
    SamplesAcknowledged,
    SamplesCollected,
    SessionBegan,
    SessionEnded,
    SessionEndReason,
    SessionRestored,
    TurnBegan,
    TurnDelayed,
    TurnEnd,
    TurnEnded,
    TurnPhase,
    TurnTimes,
)

SESSION = SessionId("0" * 32)
SECRET = "the agent's own words"
LOST = EngineError(SECRET, url="http://e", accepted=False)
TIMES = TurnTimes(rendering_s=0.25, gate_s=1.0, engine_s=2.0, held_s=0.5, recording_s=0.25)

RECORDED = TurnEnded(
    at=1.0,
    session_id=SESSION,
    number=4,
    end=TurnEnd.RECORDED,
    dialect="chat",
    times=TIMES,
    prompt_tokens=100,
    sampled_tokens=7,
    engine_calls=1,
    engine_url="http://e",
    turn_id=TurnId(3),
    parent=TurnId(1),
    label=Label.BRANCH,
    cause=Cause.REPLY_REWRITTEN,
    finish_reason=FinishReason.STOP,
    cached_tokens=90,
    weight_version="v2",
    request_id="r",
)
FAILED = TurnEnded(
    at=1.0,
    session_id=SESSION,
    number=4,
    end=TurnEnd.FAILED,
    dialect="chat",
    times=TIMES,
    prompt_tokens=100,
    sampled_tokens=None,
    engine_calls=1,
    error=LOST,
)


def refuse(error: Any, status: int) -> RequestFailed:
    return RequestFailed(
        at=1.0, method="POST", path=f"/sessions/{SESSION}/v1/messages", status=status, error=error, session_id=SESSION
    )


def change(state: str, error: str = "") -> EngineChanged:
    return EngineChanged(
        at=1.0,
        url="http://e",
        state=state,
        state_before="serving",
        weight_version="v2",
        weight_version_before="v1",
        error=error,
    )


CASES: tuple[tuple[Report, int, str], ...] = (
    (
        TurnBegan(at=1.0, session_id=SESSION, number=4, dialect="chat", request_id="r"),
        logging.DEBUG,
        f"turn_began session={SESSION} number=4 request=r dialect=chat",
    ),
    (
        TurnDelayed(
            at=1.0,
            session_id=SESSION,
            number=4,
            phase=TurnPhase.ENGINE,
            phase_age_s=60.0,
            age_s=61.5,
            engine_calls=1,
            engine_url="http://e",
        ),
        logging.WARNING,
        f"turn_delayed session={SESSION} number=4 phase=engine phase_age_s=60 age_s=61.5 engine=http://e "
        "engine_calls=1",
    ),
    (
        RECORDED,
        logging.INFO,
        f"turn_ended session={SESSION} turn=3 number=4 request=r end=recorded label=branch cause=reply_rewritten "
        "parent=1 dialect=chat prompt_tokens=100 cached_tokens=90 sampled_tokens=7 finish_reason=stop gate_s=1 "
        "engine_s=2 here_s=0.5 held_s=0.5 total_s=4 engine=http://e engine_calls=1 weight_version=v2",
    ),
    (
        FAILED,
        logging.WARNING,
        f"turn_ended session={SESSION} number=4 end=failed dialect=chat prompt_tokens=100 cached_tokens=0 gate_s=1 "
        "engine_s=2 here_s=0.5 held_s=0.5 total_s=4 engine_calls=1 code=engine "
        'facts="url=http://e accepted=false"',
    ),
    (
        refuse(HistoryDivergedError(SECRET, rollback_turns=2, difference={"stored": SECRET}, would_match=SECRET), 400),
        logging.INFO,
        f"request_failed session={SESSION} method=POST path=/sessions/{SESSION}/v1/messages status=400 "
        'code=history_diverged facts="rollback_turns=2"',
    ),
    (
        refuse(LOST, 502),
        logging.WARNING,
        f"request_failed session={SESSION} method=POST path=/sessions/{SESSION}/v1/messages status=502 code=engine "
        'facts="url=http://e accepted=false"',
    ),
    (
        SessionBegan(at=1.0, session_id=SESSION, history="tree"),
        logging.INFO,
        f"session_began session={SESSION} history=tree",
    ),
    (
        SessionRestored(at=1.0, session_id=SESSION, history="tree", turns=3),
        logging.INFO,
        f"session_restored session={SESSION} history=tree turns=3",
    ),
    (
        SamplesAcknowledged(at=1.0, session_id=SESSION, receipt="d" * 32, turns=3),
        logging.INFO,
        f"samples_acknowledged session={SESSION} turns=3 receipt={'d' * 32}",
    ),
    (
        SessionEnded(
            at=1.0,
            session_id=SESSION,
            reason=SessionEndReason.DELETED,
            turns=3,
            sampled_tokens=70,
            uncollected_tokens=7,
            age_s=12.5,
        ),
        logging.INFO,
        f"session_ended session={SESSION} reason=deleted turns=3 sampled_tokens=70 uncollected_tokens=7 age_s=12.5",
    ),
    (
        SamplesCollected(at=1.0, session_id=SESSION, samples=2, trainable_tokens=63, size_bytes=4096, seconds=0.01),
        logging.INFO,
        f"samples_collected session={SESSION} samples=2 trainable_tokens=63 size_bytes=4096 seconds=0.01",
    ),
    (
        EngineCallEnded(at=1.0, url="http://e", seconds=2.0),
        logging.DEBUG,
        "engine_call_ended engine=http://e seconds=2 is_cancelled=false",
    ),
    (
        EngineCallEnded(at=1.0, url="http://e", seconds=2.0, error=LOST),
        logging.DEBUG,
        "engine_call_ended engine=http://e seconds=2 is_cancelled=false code=engine "
        'facts="url=http://e accepted=false"',
    ),
    (
        change("unreachable", "refused"),
        logging.WARNING,
        "engine_changed engine=http://e state=unreachable state_before=serving weight_version=v2 "
        "weight_version_before=v1 reason=refused",
    ),
    (
        change("serving"),
        logging.INFO,
        "engine_changed engine=http://e state=serving state_before=serving weight_version=v2 weight_version_before=v1",
    ),
    (
        RouteChanged(at=1.0, url="http://e", state="unfit", reason="no logprobs"),
        logging.WARNING,
        'route_changed engine=http://e state=unfit reason="no logprobs"',
    ),
    (
        RouteChanged(at=1.0, url="http://e", state="sound", reason=""),
        logging.INFO,
        "route_changed engine=http://e state=sound",
    ),
    (PauseChanged(at=1.0, is_paused=True, mode="abort"), logging.INFO, "pause_changed is_paused=true mode=abort"),
    (
        PauseChanged(at=1.0, is_paused=False, mode="abort", seconds=3.0),
        logging.INFO,
        "pause_changed is_paused=false mode=abort seconds=3",
    ),
)


@pytest.mark.parametrize(("report", "level", "text"), CASES, ids=lambda each: type(each).__name__)
def test_a_report_is_a_line(report: Report, level: int, text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "turnkeeper.reports")
    log_report(report)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (level, text)
    assert SECRET not in record.getMessage()


def test_every_kind_of_report_has_a_line() -> None:
    assert set(LINES) == set(get_args(Report)) == {type(report) for report, _, _ in CASES}


def test_a_kind_that_is_not_known_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log_report(cast(Report, object()))
    assert caplog.records == []


def test_what_the_level_leaves_out_is_not_described(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "turnkeeper.reports")
    log_report(RECORDED)
    assert caplog.records == []


def test_fields_are_json_ready() -> None:
    for report, _, _ in CASES:
        describe: Callable[[Any], dict[str, object]] = LINES[type(report)].describe
        event = LogEvent("e", **cast(Any, describe(report)))
        for value in event.fields.values():
            assert value is None or type(value) in (str, int, float, bool, dict, tuple), value
