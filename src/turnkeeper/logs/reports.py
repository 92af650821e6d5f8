"""The reader of reports that logs: one line for each report.

A line is named as its report: ``turn_ended`` is a `TurnEnded`. Errors are told by their codes and facts, never by
their messages.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from turnkeeper.errors import TurnkeeperError
from turnkeeper.ids import parse_session_id
from turnkeeper.logs.event import FieldValue, LogEvent
from turnkeeper.logs.fault import describe_error
from turnkeeper.logs.path import shorten_path
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
    SessionRestored,
    TurnBegan,
    TurnDelayed,
    TurnEnd,
    TurnEnded,
)

logger = logging.getLogger("turnkeeper.reports")

Fields: TypeAlias = dict[str, FieldValue]


def log_report(report: Report) -> None:
    """Log one report; a report of an unknown kind is left to other readers."""
    row = LINES.get(type(report))
    if row is None:
        return
    level = row.choose_level(report)
    if logger.isEnabledFor(level):
        # A record made here: looking for the line of code that logs would take longer than everything else.
        event = LogEvent(row.name, **row.describe(report))
        logger.handle(logger.makeRecord(logger.name, level, __file__, 0, event, (), None))


class Line:
    """How the reports of one kind are logged."""

    __slots__ = ("choose_level", "describe", "name")

    def __init__(self, name: str, describe: Callable[[Any], Fields], level: int | Callable[[Any], int]) -> None:
        """Log reports by this name.

        Args:
            name: the event.
            describe: makes the fields of a report.
            level: of all these reports, or a function that chooses one.
        """
        self.name = name
        self.describe = describe
        self.choose_level: Callable[[Any], int] = (lambda _: level) if isinstance(level, int) else level


def _describe_turn_begin(report: TurnBegan) -> Fields:
    return {
        "session": report.session_id,
        "number": report.number,
        "request": report.request_id or None,
        "dialect": report.dialect,
    }


def _describe_delay(report: TurnDelayed) -> Fields:
    return {
        "session": report.session_id,
        "number": report.number,
        "request": report.request_id or None,
        "phase": str(report.phase),
        "phase_age_s": report.phase_age_s,
        "age_s": report.age_s,
        "engine": report.engine_url or None,
        "engine_calls": report.engine_calls,
    }


def _describe_turn_end(report: TurnEnded) -> Fields:
    times, error = report.times, report.error
    return {
        "session": report.session_id,
        "turn": report.turn_id,
        "number": report.number,
        "request": report.request_id or None,
        "end": str(report.end),
        "label": _spell(report.label),
        "cause": _spell(report.cause),
        "parent": report.parent,
        "dialect": report.dialect,
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "sampled_tokens": report.sampled_tokens,
        "finish_reason": _spell(report.finish_reason),
        "gate_s": times.gate_s,
        "engine_s": times.engine_s,
        "here_s": times.here_s,
        "held_s": times.held_s,
        "first_token_s": report.first_token_s,
        "total_s": times.total_s,
        "engine": report.engine_url or None,
        "engine_calls": report.engine_calls,
        "weight_version": report.weight_version,
        "joined": report.joined or None,
        "drop_reason": _spell(report.drop_reason),
        **({} if error is None else describe_error(error)),
    }


def _describe_failure(report: RequestFailed) -> Fields:
    return {
        "session": parse_session_id(report.session_id),
        "request": report.request_id or None,
        "method": report.method,
        "path": shorten_path(report.path),
        "status": report.status,
        **describe_error(report.error),
    }


def _describe_session_begin(report: SessionBegan) -> Fields:
    return {"session": report.session_id, "history": report.history}


def _describe_restoration(report: SessionRestored) -> Fields:
    return {"session": report.session_id, "history": report.history, "turns": report.turns}


def _describe_session_end(report: SessionEnded) -> Fields:
    return {
        "session": report.session_id,
        "reason": str(report.reason),
        "turns": report.turns,
        "sampled_tokens": report.sampled_tokens,
        "uncollected_tokens": report.uncollected_tokens,
        "age_s": report.age_s,
    }


def _describe_collect(report: SamplesCollected) -> Fields:
    return {
        "session": report.session_id,
        "samples": report.samples,
        "trainable_tokens": report.trainable_tokens,
        "size_bytes": report.size_bytes,
        "seconds": report.seconds,
        "receipt": report.receipt,
    }


def _describe_acknowledgement(report: SamplesAcknowledged) -> Fields:
    return {"session": report.session_id, "turns": report.turns, "receipt": report.receipt}


def _describe_call(report: EngineCallEnded) -> Fields:
    outcome = {} if report.error is None else describe_error(report.error)
    return {"engine": report.url, "seconds": report.seconds, "is_cancelled": report.is_cancelled, **outcome}


def _describe_engine(report: EngineChanged) -> Fields:
    return {
        "engine": report.url,
        "state": report.state,
        "state_before": report.state_before,
        "weight_version": report.weight_version,
        "weight_version_before": report.weight_version_before,
        "reason": report.error or None,
    }


def _describe_route(report: RouteChanged) -> Fields:
    return {"engine": report.url, "state": report.state, "reason": report.reason or None}


def _describe_pause(report: PauseChanged) -> Fields:
    return {"is_paused": report.is_paused, "mode": report.mode, "seconds": None if report.is_paused else report.seconds}


def _spell(value: object) -> str | None:
    return None if value is None else str(value)


def _rate_turn_end(report: TurnEnded) -> int:
    status = report.error.http_status if isinstance(report.error, TurnkeeperError) else 500
    return logging.WARNING if report.end is TurnEnd.FAILED and status >= 500 else logging.INFO


def _rate_failure(report: RequestFailed) -> int:
    return logging.WARNING if report.status >= 500 else logging.INFO


def _rate_engine(report: EngineChanged) -> int:
    return logging.WARNING if report.state == "unreachable" else logging.INFO


def _rate_route(report: RouteChanged) -> int:
    return logging.WARNING if report.reason else logging.INFO


LINES: Mapping[type[Report], Line] = {
    TurnBegan: Line("turn_began", _describe_turn_begin, logging.DEBUG),
    TurnDelayed: Line("turn_delayed", _describe_delay, logging.WARNING),
    TurnEnded: Line("turn_ended", _describe_turn_end, _rate_turn_end),
    RequestFailed: Line("request_failed", _describe_failure, _rate_failure),
    SessionBegan: Line("session_began", _describe_session_begin, logging.INFO),
    SessionRestored: Line("session_restored", _describe_restoration, logging.INFO),
    SessionEnded: Line("session_ended", _describe_session_end, logging.INFO),
    SamplesAcknowledged: Line("samples_acknowledged", _describe_acknowledgement, logging.INFO),
    SamplesCollected: Line("samples_collected", _describe_collect, logging.INFO),
    EngineCallEnded: Line("engine_call_ended", _describe_call, logging.DEBUG),
    EngineChanged: Line("engine_changed", _describe_engine, _rate_engine),
    RouteChanged: Line("route_changed", _describe_route, _rate_route),
    PauseChanged: Line("pause_changed", _describe_pause, logging.INFO),
}
"""How each kind of report is logged."""
