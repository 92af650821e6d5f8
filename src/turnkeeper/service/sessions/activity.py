"""What a session does right now, and what its recorded turns took."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from turnkeeper.core.agent import find_sub_agent
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.sessions.entry import SessionEntry, TurnCost
from turnkeeper.telemetry import TurnPhase

if TYPE_CHECKING:
    from turnkeeper.service.turns import TurnInFlight

FindEngine: TypeAlias = Callable[[str], str]
"""Finds the URL of the engine that has a call, by the call's request id; empty where none has it."""


def list_in_flight(entry: SessionEntry) -> "list[TurnInFlight]":
    """List the turns in flight of a session, the oldest first."""
    return sorted(entry.in_flight.values(), key=lambda turn: (turn.phases.began, turn.pending.number))


def describe_phase(turn: "TurnInFlight", find_engine: FindEngine) -> JsonObject:
    """Describe in short where a turn in flight stands: its phase, the ages of both, and the engine that has it."""
    phases = turn.phases
    url = find_engine(turn.call_status.rid) if phases.phase is TurnPhase.ENGINE else ""
    return {
        "number": turn.pending.number,
        "phase": str(phases.phase),
        "age_s": round(phases.age_s, 3),
        "phase_age_s": round(phases.phase_age_s, 3),
        "engine": url or None,
    }


def describe_in_flight(turn: "TurnInFlight", find_engine: FindEngine) -> JsonObject:
    """Describe a turn in flight: where it stands, what it asks, and who waits for it."""
    pending, request = turn.pending, turn.pending.request
    return {
        **describe_phase(turn, find_engine),
        "parent": pending.parent_id,
        "response_id": turn.response_id,
        "dialect": request.dialect,
        "model": request.model,
        "agent": find_sub_agent(request.headers),
        "added_messages": len(pending.shown),
        "prompt_tokens": turn.prompt_tokens,
        "engine_calls": turn.call_status.engine_calls,
        "clients": turn.connected_clients,
        "times": turn.phases.times.to_json(),
    }


def describe_cost(cost: TurnCost) -> JsonObject:
    """Describe what a recorded turn took: the seconds in each phase, the engine that answered, its calls."""
    return {"times": cost.times.to_json(), "engine": cost.engine_url or None, "engine_calls": cost.engine_calls}
