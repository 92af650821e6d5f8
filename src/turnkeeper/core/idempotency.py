"""The decision whether a request is a retry, which joins the call in flight or replays the stored reply, or is sampled.

The service joins and replays; here it is only decided, from what the service says is in flight and stored. A request
that nothing marks as a retry is a sample of its own: best-of-n and twin sub-agents send equal bodies on purpose. Agents
that harness headers tell apart have digests apart: none of them joins, or gets again, what another asked for.

::

    same digest and parent in flight     its agent hung up, or equal key, or retry count > 0   -> join
    same digest stored                   never written in full                                 -> replay
                                         retry count > 0 or equal key, no child yet, young     -> replay
                                         otherwise                                             -> resample
    nothing of that digest                                                                     -> new
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from turnkeeper.core.history import Query
from turnkeeper.core.turn import RetryMarks
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import encode_for_digest

RETRY_COUNT_HEADER = "x-stainless-retry-count"
IDEMPOTENCY_KEY_HEADER = "idempotency-key"


class Answer(StrEnum):
    """The decision on a request."""

    NEW = "new"
    """No equal request came before, so the request is sampled."""
    RESAMPLE = "resample"
    """An equal request came before, and this one is not a retry, so it is sampled again."""
    JOIN = "join"
    """The request waits for a call in flight and gets the reply of that call."""
    REPLAY = "replay"
    """The request gets a stored reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer, and what it refers to."""

    answer: Answer
    number: int | None = None
    """For a join: the pending turn's number."""
    turn_id: TurnId | None = None
    """For a replay: the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCall:
    """A turn in flight, or one that is done and held for an agent that hung up."""

    number: int
    """The pending turn's."""
    digest: str
    parent: TurnId | None
    key: str = ""
    is_connected: bool = True
    """True while the agent for which the turn runs listens, or another agent that has joined it."""
    joined: int = 0
    """The number of requests that have joined the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """A committed turn whose reply could be sent again."""

    turn_id: TurnId
    digest: str
    key: str = ""
    committed_at: float
    """Unix seconds."""
    is_delivered: bool
    """True when the reply was delivered in full, or is being replayed right now."""
    has_children: bool
    """True when a turn extends this one, which proves that an agent has the reply."""


def read_retry_marks(headers: Mapping[str, str]) -> RetryMarks:
    """Read the marks of a request; names in lower case. A count that is no number is none."""
    count = headers.get(RETRY_COUNT_HEADER, "").strip()
    number = int(count) if count.isascii() and count.isdecimal() and len(count) < 10 else 0
    return RetryMarks(retry_count=number, key=headers.get(IDEMPOTENCY_KEY_HEADER, "").strip())


def digest_request(query: Query, sampling: Mapping[str, Any], agent: str | None = None) -> str:
    """Digest what makes two requests equal: agent, messages, tools, template arguments and sampling; 32 hex digits."""
    hasher = blake2b(f"{query.context_digest}{agent or ''}\0".encode(), digest_size=16)
    for message in query.messages:
        hasher.update(message.digest)
    hasher.update(encode_for_digest(dict(sampling)))
    return hasher.hexdigest()


def decide(
    digest: str,
    parent: TurnId | None,
    marks: RetryMarks,
    *,
    running: Iterable[RunningCall],
    stored: Iterable[StoredReply],
    at: float,
    replay_window_s: float,
) -> Decision:
    """Decide whether a request joins a call in flight, gets a stored reply, or is sampled.

    Args:
        digest: the request's.
        parent: the turn it attaches to.
        marks: what its headers say.
        running: the session's calls in flight.
        stored: the session's committed turns.
        at: Unix seconds, now.
        replay_window_s: for how long after its commit a reply that was delivered is replayed.
    """
    calls = [call for call in running if call.digest == digest and call.parent == parent]
    replies = sorted((reply for reply in stored if reply.digest == digest), key=lambda reply: reply.turn_id)
    fresh = bool(replies) and not replies[-1].has_children and at - replies[-1].committed_at <= replay_window_s
    is_retry = marks.retry_count > 0
    choices = (
        _join(call for call in calls if marks.key and call.key == marks.key),
        _replay(reply for reply in replies if fresh and marks.key and reply.key == marks.key),
        _join(call for call in calls if not call.is_connected),
        _replay(reply for reply in replies if not reply.is_delivered and not reply.has_children),
        _join(call for call in calls if is_retry),
        _replay(replies if fresh and is_retry else ()),
    )
    otherwise = Decision(answer=Answer.RESAMPLE if calls or replies else Answer.NEW)
    return next((choice for choice in choices if choice is not None), otherwise)


def _join(calls: Iterable[RunningCall]) -> Decision | None:
    """Join the call that the fewest requests have joined; of several the oldest."""
    call = min(calls, key=lambda call: (call.joined, call.number), default=None)
    return None if call is None else Decision(answer=Answer.JOIN, number=call.number)


def _replay(replies: Iterable[StoredReply]) -> Decision | None:
    """Replay the newest of the replies."""
    reply = max(replies, key=lambda reply: reply.turn_id, default=None)
    return None if reply is None else Decision(answer=Answer.REPLAY, turn_id=reply.turn_id)
