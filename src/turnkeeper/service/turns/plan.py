"""Plans the engine call of one turn before the call is made. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from turnkeeper.channels import Asked, Capture, HeldPath, TurnPlan
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core.callids import NamedReply
from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.session import Session
from turnkeeper.core.turn import Completion, Prompt, TurnRequest
from turnkeeper.engines import GenerateRequest, PromptText
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.service.turns.budget import Budget, plan_budget
from turnkeeper.service.turns.prompt import join_prompt
from turnkeeper.service.turns.request import ResolvedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """One turn's prompt and the engine call that goes with it."""

    prompt: Prompt
    engine_request: GenerateRequest
    held: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    """By side channel, the items of the parent's path that the reply's payload will cover again."""
    wants_text: bool = False
    """True where text is handed on to the client as it is generated."""
    marks: JsonObject = field(default_factory=dict[str, Any])
    """The marks of the turn that are known before the call."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the whole prompt."""
        return len(self.engine_request.prompt_ids)

    def name_completion(self, completion: Completion, named: NamedReply, response_id: str) -> Completion:
        """Return the completion with the id of its response, the ids of its tool calls and the marks of the plan."""
        marks = {**self.marks, **completion.marks}
        if dropped := {*self.marks.get("dropped_fields", ()), *completion.marks.get("dropped_fields", ())}:
            marks["dropped_fields"] = sorted(dropped)
        return replace(
            completion,
            response_id=response_id,
            message=named.message,
            sampled_ids=named.sampled_ids,
            lora_name=self.engine_request.lora_name,
            marks=marks,
        )


def plan_generation(
    session: Session,
    pending: PendingTurn,
    resolved: ResolvedRequest,
    prompt: Prompt,
    *,
    messages: Sequence[Message],
    session_id: SessionId,
    rid: str,
    limit_tokens: int | None,
    trace: Mapping[str, str],
    prompt_text: PromptText | None = None,
    captures: Sequence[Capture] = (),
    config: ResolvedConfig,
) -> GenerationPlan:
    """Decide token budget, side channels and everything else that the engine call needs.

    Args:
        session: holds the parent's path.
        pending: the turn.
        resolved: the request that the turn came from.
        prompt: the rendered prompt.
        messages: the whole conversation as the prompt has it, system and developer messages placed.
        session_id: the routing key of the engine call.
        rid: names the engine call.
        limit_tokens: the most tokens of prompt and completion together; None for no limit.
        trace: the tracing headers that the engine is sent.
        prompt_text: holds the JSON of the session's last prompt; None where nothing is held.
        captures: the side channels that the turn may ask for; none where nothing of its session is trained.
        config: the options.

    Raises:
        ContextLengthError: the prompt leaves no room for a single token.
    """
    request, prompt_ids = resolved.request, join_prompt(pending, prompt)
    wanted = request.sampling.get("max_tokens")
    budget = plan_budget(prompt_tokens=len(prompt_ids), asked_tokens=wanted, limit_tokens=limit_tokens)
    asked = dict(_plan_channels(captures, pending, prompt, len(prompt_ids), request))
    return GenerationPlan(
        prompt=prompt,
        engine_request=GenerateRequest(
            rid=rid,
            session_id=session_id,
            prompt_ids=prompt_ids,
            messages=tuple(messages),
            tools=request.callable_tools,
            sampling=_limit_tokens(request.sampling, budget),
            chat_template_kwargs=prompt.chat_template_kwargs,
            forwarded=request.forwarded,
            lora_name=config.engine.lora_name,
            asked=asked,
            trace=trace,
            prompt_text=prompt_text or PromptText(),
        ),
        held=_list_held(session, pending, captures, asked),
        wants_text=request.wants_text and not (request.sampling.get("stop") or request.sampling.get("stop_regex")),
        marks=dict(_list_marks(resolved, budget)),
    )


def _limit_tokens(sampling: Mapping[str, Any], budget: Budget) -> JsonObject:
    return {**sampling} if budget.max_tokens is None else {**sampling, "max_tokens": budget.max_tokens}


def _list_marks(resolved: ResolvedRequest, budget: Budget) -> Iterable[tuple[str, Any]]:
    if resolved.overridden:
        yield "overridden", dict(resolved.overridden)
    if resolved.unpinned:
        yield "unpinned", list(resolved.unpinned)
    if resolved.request.dropped_fields:
        yield "dropped_fields", list(resolved.request.dropped_fields)
    if budget.asked_tokens is not None:
        yield "lowered_max_tokens_from", budget.asked_tokens


def _plan_channels(
    captures: Sequence[Capture], pending: PendingTurn, prompt: Prompt, prompt_tokens: int, request: TurnRequest
) -> Iterable[tuple[str, Asked]]:
    if not captures:
        return
    parent_tokens = len(pending.parent_path_ids)
    turn = TurnPlan(
        prompt_tokens=prompt_tokens,
        parent_tokens=parent_tokens,
        common_prefix=parent_tokens - prompt.trim,
        sampling={**request.forwarded, **request.sampling},
    )
    for capture in captures:
        asked = capture.plan(turn)
        if asked is not None:
            yield capture.channel.name, asked


def _list_held(
    session: Session, pending: PendingTurn, captures: Sequence[Capture], asked: Mapping[str, Asked]
) -> Mapping[str, Sequence[Any]]:
    def find_path(name: str) -> HeldPath:
        path = session.forest.path(pending.parent_id)
        return HeldPath(
            items=[turn.completion.channels.get(name) for turn in path],
            path_tokens=[turn.path_tokens for turn in path],
        )

    found: dict[str, Sequence[Any]] = {}
    for capture in captures:
        name = capture.channel.name
        if name in asked and (held := capture.list_held(asked[name], partial(find_path, name))):
            found[name] = held
    return found
