"""Retries: what the pure decision needs to know of a session, and what it means there."""

from turnkeeper.core.idempotency import Decision, RunningCall, StoredReply, decide
from turnkeeper.ids import TurnId
from turnkeeper.service.entry import SessionEntry
from turnkeeper.service.flight import Flight
from turnkeeper.service.order import PreparedOrder


def decide_order(
    entry: SessionEntry, prepared: PreparedOrder, *, parent: TurnId | None, at: float, replay_window_s: float
) -> Decision:
    """Whether an order joins a flight, repeats a turn, or is sampled."""
    digest = prepared.request.digest
    return decide(
        digest,
        parent,
        prepared.order.marks,
        running=[_describe_flight(flight) for flight in entry.flights.values()],
        stored=[_describe_turn(entry, turn_id) for turn_id in entry.by_digest.get(digest, ())],
        at=at,
        replay_window_s=replay_window_s,
    )


def _describe_flight(flight: Flight) -> RunningCall:
    return RunningCall(
        number=flight.number,
        digest=flight.digest,
        parent=flight.parent,
        key=flight.key,
        is_connected=flight.has_waiters,
        joined=flight.joined,
    )


def _describe_turn(entry: SessionEntry, turn_id: TurnId) -> StoredReply:
    turn = entry.session.forest.get(turn_id)
    return StoredReply(
        turn_id=turn_id,
        digest=turn.request.digest,
        key=entry.keys.get(turn_id, ""),
        committed_at=turn.committed_at,
        is_delivered=turn_id not in entry.lost,
        has_children=bool(entry.session.forest.children(turn_id)),
    )
