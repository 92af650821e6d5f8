"""A turn's request resolved against its session: pins applied, digest worked out, parent found. Nothing changes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turnkeeper.core import Query, Session, build_query
from turnkeeper.core.agent import find_sub_agent
from turnkeeper.core.idempotency import Decision, RunningCall, StoredReply, decide, digest_request
from turnkeeper.core.turn import TurnRequest
from turnkeeper.dialects.sampling import apply_pins
from turnkeeper.ids import TurnId
from turnkeeper.service.sessions import SessionEntry
from turnkeeper.service.turns.in_flight import TurnInFlight


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """A request with the session's pins applied, and the turn that it goes on from."""

    request: TurnRequest
    """Effective sampling and digest filled in."""
    query: Query
    """The request as the search sees it."""
    parent: TurnId | None
    """The turn that the request attaches to; None for a new root."""
    overridden: Mapping[str, Any]
    """The values that the agent asked for and that pins replaced, by the name of the field."""
    unpinned: tuple[str, ...]
    """Fields by which the agent changes the distribution, since no pin says otherwise."""


def resolve_request(
    request: TurnRequest, pins: Mapping[str, Any], session: Session, query: Query | None = None
) -> ResolvedRequest:
    """Apply the session's pins, find the turn that the request goes on from, work out the request's digest.

    In this order: what is found on the path takes over its stored digest, so that of a history of 32,000 tokens only
    what is new is digested (0.3 ms less).
    """
    pinned = apply_pins(request.sampling, pins, request.forwarded)
    query = build_query(request) if query is None else query
    parent = session.find_parent(query)
    digest = digest_request(query, pinned.sampling, find_sub_agent(request.headers))
    return ResolvedRequest(
        request=replace(
            request,
            sampling=pinned.sampling,
            forwarded=pinned.forwarded,
            digest=digest,
            notes=(*request.notes, *pinned.notes),
        ),
        query=query,
        parent=parent,
        overridden=pinned.overridden,
        unpinned=pinned.unpinned,
    )


def decide_retry(entry: SessionEntry, resolved: ResolvedRequest, *, replay_window_s: float) -> Decision:
    """Decide whether a request joins a turn in flight, repeats a recorded one, or is sampled."""
    digest = resolved.request.digest
    return decide(
        digest,
        resolved.parent,
        resolved.request.retry,
        running=[_describe_in_flight(turn) for turn in entry.in_flight.values()],
        stored=[_describe_recorded(entry, turn_id) for turn_id in entry.by_digest.get(digest, ())],
        at=entry.clock.unix(),
        replay_window_s=replay_window_s,
    )


def _describe_in_flight(turn: TurnInFlight) -> RunningCall:
    return RunningCall(
        number=turn.pending.number,
        digest=turn.pending.request.digest,
        parent=turn.pending.parent_id,
        key=turn.pending.request.retry.key,
        is_connected=turn.has_waiters,
        joined=turn.joined,
    )


def _describe_recorded(entry: SessionEntry, turn_id: TurnId) -> StoredReply:
    turn = entry.session.forest.get(turn_id)
    return StoredReply(
        turn_id=turn_id,
        digest=turn.request.digest,
        key=turn.request.retry.key,
        committed_at=turn.committed_at,
        is_delivered=turn_id not in entry.lost and turn_id not in entry.unknown,
        has_children=bool(entry.session.forest.children(turn_id)),
    )
