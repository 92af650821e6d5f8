"""Ends sessions: their turns in flight are given up, and the tokens that no collect has seen are counted as dropped."""

from functools import partial

from turnkeeper.core import DropReason
from turnkeeper.errors import SessionClosedError
from turnkeeper.metrics import Metrics
from turnkeeper.service.sessions.entry import SessionEntry
from turnkeeper.telemetry import SessionEnded, SessionEndReason


def close_session(entry: SessionEntry, reason: SessionEndReason, metrics: Metrics) -> None:
    """End a session; a turn that is being recorded is recorded first.

    Args:
        entry: the session, which can no longer be found.
        reason: why it ends; what clients that wait for a turn are told.
        metrics: counts the session and the tokens that are lost with it.
    """
    entry.after_recording(partial(_end, entry, reason, metrics))


def give_up_turns(entry: SessionEntry, reason: SessionEndReason) -> None:
    """Give up the turns that a session has in flight, but for those that are being recorded."""
    error = SessionClosedError(f"session {entry.id}: {reason}")
    for turn in tuple(entry.in_flight.values()):
        turn.abandon(DropReason.DELETED, error)


def _end(entry: SessionEntry, reason: SessionEndReason, metrics: Metrics) -> None:
    is_kept = reason is SessionEndReason.KEPT
    entry.session.close(reason, at=entry.clock.unix())
    give_up_turns(entry, SessionEndReason.SERVER_STOPS if is_kept else reason)
    drop = DropReason.EVICTED if reason is SessionEndReason.EXPIRED else DropReason.DELETED
    uncollected = entry.count_uncollected()
    if uncollected and not is_kept:
        metrics.count("turnkeeper_tokens_dropped", uncollected, reason=str(drop))
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
            uncollected_tokens=uncollected,
            age_s=max(0.0, at - entry.created_at),
        )
    )
