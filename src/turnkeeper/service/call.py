"""What a turn's engine call needs, decided before it; and what it leaves behind. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turnkeeper.core.accounting import DropReason
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import Completion, Prompt, TurnRequest
from turnkeeper.engines import GenerateRequest
from turnkeeper.engines.message import name_calls
from turnkeeper.errors import EngineError, EnginePausedError, EngineRefusedError, TurnAbortedError, TurnkeeperError
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.routing import RoutingRows, RowsRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """Everything that an engine call needs."""

    session_id: SessionId
    response_id: str
    request: TurnRequest
    messages: tuple[Message, ...]
    """The whole conversation in stored spelling."""
    prompt: Prompt
    prompt_ids: TokenIds
    """Shape [P]: the whole prompt."""
    max_tokens: int | None
    """What the budget leaves; None for no limit."""
    rows: RowsRequest | None
    """The routing rows to ask for; None without routing replay."""
    held_rows: Sequence[RoutingRows] = ()
    """The stored patches of the parent's path, where a payload will cover them again."""
    wants_indexer: bool = False
    wants_text: bool = False
    """Whether text is handed on as it is generated."""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tracing headers that go along."""
    marks: JsonObject = field(default_factory=dict[str, Any])
    """What is notable so far."""

    def build_request(self, rid: str) -> GenerateRequest:
        """The engine call under this id."""
        limit = {} if self.max_tokens is None else {"max_tokens": self.max_tokens}
        return GenerateRequest(
            rid=rid,
            session_id=self.session_id,
            prompt_ids=self.prompt_ids,
            messages=self.messages,
            tools=self.request.tools,
            sampling={**self.request.sampling, **limit},
            template_kwargs=self.prompt.template_kwargs,
            forwarded=self.request.forwarded,
            rows=self.rows,
            wants_indexer=self.wants_indexer,
            trace=self.trace,
        )

    def name_completion(self, completion: Completion) -> Completion:
        """The completion under the id of its delivery, with the plan's marks, each of its calls with an id."""
        return replace(
            completion,
            response_id=self.response_id,
            message=name_calls(completion.message, self.response_id),
            marks={**self.marks, **completion.marks},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Tokens that were sampled in vain, or a call of which nobody knows."""

    reason: DropReason
    sampled_tokens: int | None
    """None when nobody knows."""


def list_losses(error: Exception) -> tuple[Loss, ...]:
    """Account for a failed call by its error.

    The error says how many tokens the reply held, and how many those that were cut short. An engine that was not
    reached, or that refused or was paused, sampled nothing. After any other failure of an engine nobody knows.
    """
    facts = error.facts if isinstance(error, TurnkeeperError) else {}
    aborted, sampled = facts.get("aborted_tokens") or 0, facts.get("sampled_tokens") or 0
    losses = [Loss(reason=DropReason.ABORTED_PIECE, sampled_tokens=aborted)] if aborted else []
    if sampled:
        losses.append(Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=sampled))
    elif is_unknown(error):
        losses.append(Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=None))
    return tuple(losses)


def is_unknown(error: Exception) -> bool:
    """Whether the engine may have sampled tokens of which it did not tell."""
    told = EngineRefusedError | EnginePausedError | TurnAbortedError
    return isinstance(error, EngineError) and not isinstance(error, told) and error.facts.get("accepted") is not False
