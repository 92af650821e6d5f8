"""Ends sessions: their turns in flight are given up, and the tokens that no collect has seen are counted as dropped."""

from functools import partial

from turnkeeper.core import DropReason
from turnkeeper.errors import SessionClosedError
from turnkeeper.metrics import Metrics
from turnkeeper.service.sessions.entry import SessionEntry
from turnkeeper.telemetry import SessionEnded

EXPIRED = "expired"
"""Why a session ended that nobody asked for any more."""

DELETED = "deleted"
"""Why a session ended that its client or its trainer deleted."""

FIRST_TURN_REFUSED = "its first turn was refused"
"""Why a session ended that a turn had opened, and that turn was refused."""

NOT_STORED = "its opening could not be stored"
"""Why a session ended that the store could not take."""

SERVER_STOPS = "the server is stopping"
"""Why a session ended that was still there when the process ended."""


def close_session(entry: SessionEntry, reason: str, metrics: Metrics) -> None:
    """End a session; a turn that is being recorded is recorded first.

    Args:
        entry: the session, which can no longer be found.
        reason: why it ends; what clients that wait for a turn are told.
        metrics: counts the session and the tokens that are lost with it.
    """
    entry.after_recording(partial(_end, entry, reason, metrics))


def give_up_turns(entry: SessionEntry, reason: str) -> None:
    """Give up the turns that a session has in flight, but for those that are being recorded."""
    error = SessionClosedError(f"session {entry.id}: {reason}")
    for turn in tuple(entry.in_flight.values()):
        turn.abandon(DropReason.DELETED, error)


def _end(entry: SessionEntry, reason: str, metrics: Metrics) -> None:
    entry.session.close(reason, at=entry.clock.unix())
    give_up_turns(entry, reason)
    drop = DropReason.EVICTED if reason == EXPIRED else DropReason.DELETED
    lost = entry.count_uncollected()
    if lost:
        metrics.count("turnkeeper_tokens_dropped", lost, reason=str(drop))
    entry.release()
    entry.publish()
    metrics.count("turnkeeper_sessions_ended", reason=reason)
    at = entry.clock.unix()
    entry.reports.publish(
        SessionEnded(
            at=at,
            session_id=entry.id,
            reason=reason,
            turns=len(entry.session.forest),
            sampled_tokens=entry.session.ledger.sampled,
            uncollected_tokens=lost,
            age_s=max(0.0, at - entry.created_at),
        )
    )
