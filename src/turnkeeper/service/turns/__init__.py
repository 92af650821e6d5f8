"""One turn, from an agent's request to its record and its responses; ``turn_service`` has the path."""

from turnkeeper.service.turns.delays import DelayWatch
from turnkeeper.service.turns.in_flight import TurnInFlight, TurnState
from turnkeeper.service.turns.plan import GenerationPlan, plan_generation
from turnkeeper.service.turns.request import ResolvedRequest, resolve_request
from turnkeeper.service.turns.turn_service import StoreTurn, TurnService
from turnkeeper.service.turns.waiter import ClientGoneError, RecordedReply, TextDelta, Waiter

__all__ = [
    "ClientGoneError",
    "DelayWatch",
    "GenerationPlan",
    "RecordedReply",
    "ResolvedRequest",
    "StoreTurn",
    "TextDelta",
    "TurnInFlight",
    "TurnService",
    "TurnState",
    "Waiter",
    "plan_generation",
    "resolve_request",
]
