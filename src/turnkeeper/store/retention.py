"""Which sessions a store keeps no longer. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from turnkeeper.choices import StoredState
from turnkeeper.ids import SessionId
from turnkeeper.store.reading import StoredLine


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """How long, and how much, a store keeps."""

    keep_s: float
    """How long a session is kept behind its last event, in seconds."""
    max_bytes: int | None = None
    """The bytes to which the store is brought back; None for no limit."""
    tombstone_s: float
    """How long a deleted session is known to be that, in seconds."""


def choose_removals(
    lines: Iterable[StoredLine],
    rules: RetentionRules,
    *,
    now: float,
    used_bytes: int,
    in_use: Collection[SessionId] = (),
) -> list[StoredLine]:
    """Choose what is to be removed, in that order: what is too old; then, while there is too much, the oldest of what
    was acknowledged, the oldest of what was collected, the oldest of the rest.

    A session that may still be asked for stays: one in use, or open and within its time to live.
    """
    ended = [line for line in lines if line.events and line.id not in in_use and _has_ended(line, now)]
    ranked = sorted(ended, key=lambda line: (_rank(line), line.changed_at))
    chosen = [line for line in ranked if now - line.changed_at > rules.keep_s]
    left = used_bytes - sum(map(_measure, chosen))
    for line in ranked:
        if rules.max_bytes is None or left <= rules.max_bytes:
            break
        if line not in chosen:
            chosen.append(line)
            left -= _measure(line)
    return chosen


def _has_ended(line: StoredLine, now: float) -> bool:
    return not line.state.is_served or now - line.changed_at > line.ttl_s


def _rank(line: StoredLine) -> int:
    if line.state is StoredState.DELETED or line.acknowledged_turns >= line.turns:
        return 0
    return 1 if line.collected_turns >= line.turns else 2


def _measure(line: StoredLine) -> int:
    return line.record_bytes + line.row_bytes
