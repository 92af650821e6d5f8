"""The events of a session, in order. Folding the events gives the session again."""

from dataclasses import dataclass
from typing import TypeAlias

from turnkeeper.core.accounting import DropReason
from turnkeeper.core.history import HistoryPolicy
from turnkeeper.core.turn import Turn
from turnkeeper.ids import TurnId
from turnkeeper.matching import DEFAULT_RULES, ReplyRules


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """The first event: the rules that the session lives by."""

    at: float
    """Unix seconds, as in every event."""
    policy: HistoryPolicy
    matcher: str
    """The matcher's name or import path."""
    replies: ReplyRules = DEFAULT_RULES
    """The rules by which the matcher compares a message with a stored reply."""
    turn_limit: int | None
    """The most turns it may have; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnCommitted:
    """A turn was recorded."""

    at: float
    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensDropped:
    """An engine call left tokens that no turn holds."""

    at: float
    reason: DropReason
    sampled_tokens: int | None
    """None where nobody knows how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDelivered:
    """A turn's reply was written to its agent in full."""

    at: float
    turn_id: TurnId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    """The session takes no further turns."""

    at: float
    reason: str
    """The reason why the session was closed, in words."""


Event: TypeAlias = SessionOpened | TurnCommitted | TokensDropped | ReplyDelivered | SessionClosed
