"""Reports: what happened in a server, each kind a value.

A report names sessions, turns and engines, counts tokens and measures seconds. It holds no text of an agent and no
key. An error in it may quote what an agent sent, so that readers show its code rather than its message; the error also
holds the frames that it was raised in, so that readers do not keep it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from turnkeeper.core import Cause, DropReason, FinishReason, Label
from turnkeeper.errors import TurnkeeperError
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.telemetry.phases import TurnPhase, TurnTimes


class TurnEnd(StrEnum):
    """How a turn in flight ended."""

    RECORDED = "recorded"
    """The turn is part of its session."""
    FAILED = "failed"
    """The request was refused, or the engine call failed."""
    ABANDONED = "abandoned"
    """The turn was given up after its request was taken: no client came back, or its session ended."""


class SessionEndReason(StrEnum):
    """Why a session ended, in words for whoever waits for one of its turns."""

    DELETED = "deleted"
    """Its client or its trainer deleted it."""
    EXPIRED = "expired"
    """Nobody asked for it for its time to live."""
    FIRST_TURN_REFUSED = "its first turn was refused"
    """A turn had opened it, and that turn was refused."""
    NOT_STORED = "its opening could not be stored"
    """The store could not take it."""
    SERVER_STOPS = "the server is stopping"
    """It was still there when the process ended, and is lost with it."""
    KEPT = "kept in the store"
    """It was still there when the process ended, and the next process goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBegan:
    """A request was taken, and its turn is in flight."""

    at: float
    """Unix seconds, as in every report."""
    session_id: SessionId
    number: int
    """The number of the turn in flight within its session; the reports of one turn share it."""
    dialect: str
    request_id: str = ""
    """The id of the HTTP request; empty where the turn has none."""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tracing headers of the request, by their lower-case names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDelayed:
    """A turn has been in flight for long: the first such report of a turn, or its age has doubled since the last."""

    at: float
    session_id: SessionId
    number: int
    phase: TurnPhase
    """What the turn waits for."""
    phase_age_s: float
    """The seconds for which it has waited for that."""
    age_s: float
    """The seconds since the turn began."""
    engine_calls: int
    """The number of calls that the turn has made to engines so far."""
    engine_url: str = ""
    """The engine that has the call; empty where none has."""
    request_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """A turn in flight was recorded, failed, or was given up."""

    at: float
    session_id: SessionId
    number: int
    end: TurnEnd
    dialect: str
    times: TurnTimes
    prompt_tokens: int
    """The length of the whole prompt; 0 where it was not rendered."""
    sampled_tokens: int | None
    """The length of the completion; None where it is unknown."""
    engine_calls: int
    """The number of calls that the turn made to engines."""
    engine_url: str = ""
    """The engine that answered last; empty where none did."""
    turn_id: TurnId | None = None
    """The turn's place in its session; None unless it was recorded, as in the next fields."""
    parent: TurnId | None = None
    label: Label | None = None
    cause: Cause | None = None
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    """The number of prompt tokens that the engine took from its prefix cache."""
    first_token_s: float | None = None
    """The seconds from the beginning of the turn to the first ids that an engine streamed; None where none did."""
    weight_version: str | None = None
    joined: int = 0
    """The number of retries that waited for this turn."""
    drop_reason: DropReason | None = None
    """Why sampled tokens were dropped with a turn that was given up."""
    error: Exception | None = None
    """Why the turn was not recorded."""
    request_id: str = ""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """A request was answered with an error."""

    at: float
    method: str
    path: str
    status: int
    error: TurnkeeperError
    request_id: str = ""
    session_id: str = ""
    """The session that the request's path names; empty where it names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBegan:
    """A session was opened."""

    at: float
    session_id: SessionId
    history: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRestored:
    """A session was taken out of the store, since somebody asked for it: a process before had opened it."""

    at: float
    session_id: SessionId
    history: str
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A session was deleted, expired, or ended with the server."""

    at: float
    session_id: SessionId
    reason: SessionEndReason
    turns: int
    sampled_tokens: int
    """All tokens that engines sampled for the session."""
    uncollected_tokens: int
    """Tokens of turns that no collect has seen."""
    age_s: float
    """The seconds since the session was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesCollected:
    """The samples of a session were collected."""

    at: float
    session_id: SessionId
    samples: int
    trainable_tokens: int
    size_bytes: int
    seconds: float
    """The time from the request to the encoded payload."""
    receipt: str | None = None
    """The receipt of the payload; None where it could not be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesAcknowledged:
    """A trainer said that it has the samples of a receipt."""

    at: float
    session_id: SessionId
    receipt: str
    turns: int
    """How many turns, from the first on, the receipt stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCallEnded:
    """An engine answered a call, failed, or the call was given up."""

    at: float
    url: str
    seconds: float
    error: Exception | None = None
    """Why there is no reply; None for a reply."""
    is_cancelled: bool = False
    """True when the call was given up before the engine answered."""
    rid: str = ""
    """The id of the call at its engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChanged:
    """An engine was seen in another state, or with other weights, than before; also the first time it is seen."""

    at: float
    url: str
    state: str
    state_before: str | None
    """None the first time."""
    weight_version: str | None
    weight_version_before: str | None
    error: str = ""
    """What an engine that cannot be reached answered; empty for any other state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChanged:
    """The check of the route to an engine came to another result than before."""

    at: float
    url: str
    state: str
    reason: str
    """Why the route is not fit; empty where it is sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChanged:
    """The gate in front of the engines was closed or opened."""

    at: float
    is_paused: bool
    mode: str | None
    """The mode in which the trainer paused the engines; None where the pause was only observed."""
    seconds: float = 0.0
    """The length of the pause that has ended; 0 at its beginning."""


Report: TypeAlias = (
    TurnBegan
    | TurnDelayed
    | TurnEnded
    | RequestFailed
    | SessionBegan
    | SessionEnded
    | SessionRestored
    | SamplesCollected
    | SamplesAcknowledged
    | EngineCallEnded
    | EngineChanged
    | RouteChanged
    | PauseChanged
)
