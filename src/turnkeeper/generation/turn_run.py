"""The state of a turn while it is generated: its parts, its engine calls, what they sampled; and the end of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.core.turn import Completion
from turnkeeper.engines.engine import GenerateRequest, Generation, IdsSink
from turnkeeper.errors import EngineError, EnginePausedError, TurnAbortedError
from turnkeeper.generation.call_status import CallStatus
from turnkeeper.generation.continuation import AbortAction
from turnkeeper.generation.gate import AbortSignal
from turnkeeper.generation.joining import ReplyPart


@dataclass(slots=True, kw_only=True, eq=False)
class TurnRun:
    """The state of a turn while it is generated."""

    request: GenerateRequest
    held: Mapping[str, Sequence[Any]]
    """By the name of a side channel, the items of the parent's path that payloads will cover again."""
    signal: AbortSignal
    on_ids: IdsSink | None
    obstacle: str | None
    started_at: float
    call_status: CallStatus = field(default_factory=CallStatus)
    parts: list[ReplyPart] = field(default_factory=list[ReplyPart])
    attempts: int = 0
    aborted_tokens: int = 0
    has_streamed: bool = False
    refused_since: float | None = None
    """The time at which an engine first refused the newest call because it is paused; None once the call was
    accepted."""
    salted_versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """By engine URL, the versions in the newest call's cache salt; empty without a salt."""

    @property
    def held_tokens(self) -> int:
        """The number of sampled ids of the parts held."""
        return sum(len(part.generation.ids) for part in self.parts)

    @property
    def sampled_tokens(self) -> int:
        """The number of ids that engines have sampled for the turn, held or not."""
        return self.aborted_tokens + self.held_tokens

    def build_refusal(self, reason: str, **facts: Any) -> TurnAbortedError:
        """Build the error of a turn that was ended on purpose."""
        return TurnAbortedError(
            f"{reason}; nothing was recorded of its {self.sampled_tokens} sampled tokens",
            hint="a trainer ends the turns that it has no use for; this one is not to be sent again",
            **facts,
        )

    def build_abort(self, action: AbortAction, url: str) -> EngineError:
        """Build the error of a turn that is not continued after an abort.

        Args:
            action: the decision: refuse, fail or give up.
            url: the engine that aborted the turn; empty when unknown.
        """
        if action is AbortAction.REFUSE:
            return self.build_refusal("the engine aborted the turn, and no weight update explains it", url=url)
        return EnginePausedError(
            f"a weight update aborted the turn after {self.sampled_tokens} sampled tokens"
            + (f", {self.attempts} times" if action is AbortAction.GIVE_UP else ""),
            hint="send the request again" if action is AbortAction.FAIL else "the engines are updated too often",
            retry_after_s=5,
            url=url,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """The versions and the gate's count of closings when an engine call began."""

    versions: Mapping[str, str]
    closings: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnOutcome:
    """The result of a turn that may be recorded."""

    completion: Completion
    generation: Generation
    """The reply behind the completion, its parts joined."""
    attempts: int
    """The number of engine calls that the turn made."""
    aborted_tokens: int
    """Sampled tokens that no turn records: of attempts generated again, or behind a stop string found late."""
