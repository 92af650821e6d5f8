"""Reports of what a server does, as values: the log, the metrics and the traces are made from them."""

from turnkeeper.telemetry.phases import PhaseClock, TurnPhase, TurnTimes
from turnkeeper.telemetry.reports import (
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
)
from turnkeeper.telemetry.stream import Publish, ReportStream, ignore_report
from turnkeeper.telemetry.tracing import NoTracing, Tracing

__all__ = [
    "EngineCallEnded",
    "EngineChanged",
    "NoTracing",
    "PauseChanged",
    "PhaseClock",
    "Publish",
    "Report",
    "ReportStream",
    "RequestFailed",
    "RouteChanged",
    "SamplesAcknowledged",
    "SamplesCollected",
    "SessionBegan",
    "SessionEndReason",
    "SessionEnded",
    "SessionRestored",
    "Tracing",
    "TurnBegan",
    "TurnDelayed",
    "TurnEnd",
    "TurnEnded",
    "TurnPhase",
    "TurnTimes",
    "ignore_report",
]
