"""The continuation of a turn that the engine aborted: the decision, and the next request.

Pure. `joining` makes one reply of the parts; `runner` does the waiting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from turnkeeper.channels import Asked, Capture
from turnkeeper.choices import OnAbort
from turnkeeper.core.tokens import TokenIds, join_ids
from turnkeeper.core.turn import FinishReason
from turnkeeper.engines.engine import TOKEN_LIMITS, GenerateRequest
from turnkeeper.fields import Use, list_fields
from turnkeeper.generation.joining import ReplyPart

_PENALTIES: Mapping[str, float] = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
_GRAMMARS = tuple(row for row in list_fields(Use.SAMPLING) if row.is_grammar)


class AbortAction(StrEnum):
    """The ways to treat an aborted turn."""

    REFUSE = "refuse"
    """Fail for good: no weight update explains the abort."""
    FAIL = "fail"
    """Fail with Retry-After: a weight update explains the abort."""
    RESTART = "restart"
    """Generate the whole turn again."""
    RESUME = "resume"
    """Continue behind the partial ids."""
    GIVE_UP = "give_up"
    """Fail: the turn was aborted too often, or can be neither restarted nor resumed."""


def decide_abort(
    on_abort: OnAbort, *, is_explained: bool, attempts: int, max_attempts: int, has_streamed: bool, obstacle: str | None
) -> AbortAction:
    """Decide how to treat an aborted turn.

    Args:
        on_abort: the operator's choice.
        is_explained: True if the abort belongs to a weight update.
        attempts: the number of engine calls made so far.
        max_attempts: the number of engine calls that a turn may make.
        has_streamed: True if the agent has got some of the text, so that the turn cannot be generated again.
        obstacle: the reason why the turn cannot be resumed; None when it can.
    """
    if not is_explained:
        return AbortAction.REFUSE
    if on_abort is OnAbort.FAIL:
        return AbortAction.FAIL
    if attempts >= max_attempts:
        return AbortAction.GIVE_UP
    if obstacle is None and (on_abort is OnAbort.RESUME or has_streamed):
        return AbortAction.RESUME
    return AbortAction.GIVE_UP if has_streamed else AbortAction.RESTART


def find_obstacle(request: GenerateRequest) -> str | None:
    """Find the field that keeps a turn from being resumed, since the engine holds state for it that a second call
    loses.

    A grammar would start at its root again, and a penalty would no longer count the tokens sampled before.
    """
    requested: Mapping[str, Any] = {**request.forwarded, **request.sampling}
    if requested.get("tool_choice") == "required" or isinstance(requested.get("tool_choice"), dict):
        return "tool_choice"
    for row in _GRAMMARS:
        if row.name in requested and not row.is_neutral(requested[row.name]):
            return row.name
    for name, neutral in _PENALTIES.items():
        if requested.get(name) not in (None, neutral):
            return name
    return None


def derive_request(
    first: GenerateRequest, parts: Sequence[ReplyPart], *, rid: str, captures: Sequence[Capture] = ()
) -> GenerateRequest:
    """Derive the request for what is missing behind the parts held so far.

    Each side channel says what the next call asks for; its capture is among ``captures``.
    """
    if not parts:
        return first if rid == first.rid else replace(first, rid=rid)
    held = join_ids([part.generation.ids for part in parts])
    prompt = join_ids([first.prompt_ids, held])
    return replace(
        first,
        rid=rid,
        prompt_ids=prompt,
        sampling=_shrink_budgets(first.sampling, len(held)),
        forwarded=_shrink_budgets(first.forwarded, len(held)),
        asked=_plan_next(first.asked, parts[-1].taken, len(prompt), captures),
    )


def _shrink_budgets(fields: Mapping[str, Any], held: int) -> Mapping[str, Any]:
    shrunk = dict(fields)
    for name in (*TOKEN_LIMITS, "min_tokens"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            shrunk[name] = max(0, value - held)
    return shrunk


def _plan_next(
    asked: Mapping[str, Asked], taken: Mapping[str, Any], prompt_tokens: int, captures: Sequence[Capture]
) -> Mapping[str, Asked]:
    planned = dict(asked)
    for capture in captures:
        name = capture.channel.name
        if name in asked and name in taken:
            planned[name] = capture.plan_next(asked[name], taken[name], prompt_tokens)
    return planned


def find_natural_end(
    ids: TokenIds, *, held: int, request: GenerateRequest, stop_ids: Sequence[int]
) -> FinishReason | None:
    """Find the finish reason of an aborted part that is complete all the same, by a stop token or the token budget.

    Args:
        ids: the part's ids, at least one.
        held: the number of sampled ids of all parts so far, this one included.
        request: the turn's own request.
        stop_ids: the family's stop tokens.
    """
    requested: object = {**request.forwarded, **request.sampling}.get("ignore_eos")
    if not requested and int(ids[-1]) in {*stop_ids, *request.stop_token_ids}:
        return FinishReason.STOP
    budget = request.token_budget
    return FinishReason.LENGTH if budget is not None and held >= budget else None
