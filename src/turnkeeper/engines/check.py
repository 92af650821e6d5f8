"""The check of an engine's reply before it is recorded, and the completion that is made of it.

Pure. Every refusal is an `EngineProtocolError` that names both numbers; the longer
list is never cut to the length of the shorter one. The rules of weight versions stand in `choose_versions`.
"""

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import numpy as np

from turnkeeper.channels import Items
from turnkeeper.core.turn import Completion, FinishReason, VersionSpan
from turnkeeper.engines.engine import GenerateRequest, Generation
from turnkeeper.errors import EngineProtocolError

_ROUNDING = 1e-3
"""The largest value that a logprob may have above 0. Float32 rounds a logit of 100 less its log-sum-exp to 1e-5;
anything beyond this is no rounding."""


def check_generation(generation: Generation, request: GenerateRequest, *, vocabulary_size: int | None = None) -> None:
    """Refuse a reply whose numbers disagree. An aborted reply is held to the same rules for the tokens that it has.

    Args:
        generation: the reply.
        request: the request that it answers.
        vocabulary_size: the number of ids that the model has, padding included; None when unknown.

    Raises:
        EngineProtocolError: with the fact ``sampled_tokens``, so that the tokens are accounted for.
    """
    count = len(generation.ids)
    if len(generation.logprobs) != count:
        _refuse(generation, f"{count} token ids but {len(generation.logprobs)} logprobs")
    if generation.completion_tokens is not None and generation.completion_tokens != count:
        _refuse(generation, f"completion_tokens is {generation.completion_tokens} but {count} token ids came")
    if not generation.is_aborted and generation.completion_tokens is None:
        _refuse(generation, f"completion_tokens is missing beside {count} token ids")
    _check_prompt(generation, request)
    if vocabulary_size is not None and count and int(generation.ids.max()) >= vocabulary_size:
        index = int(np.argmax(generation.ids >= vocabulary_size))
        found = f"sampled token {index} of {count} is {generation.ids[index]}"
        _refuse(
            generation,
            f"{found}, and the checkpoint has {vocabulary_size} tokens",
            hint="the engine serves another model than --hf-checkpoint names",
        )
    if not np.isfinite(generation.logprobs).all():
        index = int(np.flatnonzero(~np.isfinite(generation.logprobs))[0])
        _refuse(generation, f"the logprob of sampled token {index} of {count} is {generation.logprobs[index]}")
    if (generation.logprobs > _ROUNDING).any():
        index = int(np.argmax(generation.logprobs > _ROUNDING))
        found = f"the logprob of sampled token {index} of {count} is {generation.logprobs[index]:g}"
        _refuse(generation, f"{found}, and a probability is not above 1")
    if not generation.is_aborted:
        _check_ending(generation)
    for span in generation.spans or ():
        if span.stop > count:
            _refuse(generation, f"a version span ends at {span.stop} but {count} token ids came")


def _check_prompt(generation: Generation, request: GenerateRequest) -> None:
    expected, found = len(request.prompt_ids), generation.prompt_tokens
    # A request that never ran was never counted. Unless a side channel needs the count, a turn is served uncounted, and
    # marked.
    if found is None and (generation.is_aborted or not request.needs_prompt_count):
        return
    if found != expected:
        said = "nothing" if found is None else str(found)
        _refuse(
            generation,
            f"{expected} prompt ids were sent but prompt_tokens is {said}",
            hint="the route drops input_ids and renders the messages itself: sglang-router 0.3.2 does, smg does not",
        )


def _check_ending(generation: Generation) -> None:
    if generation.finish_reason not in set(FinishReason):
        _refuse(generation, f"finish_reason is {generation.finish_reason!r}, expected one of {', '.join(FinishReason)}")
    if not len(generation.ids):
        _refuse(generation, "0 token ids came with a finished reply, expected at least 1")


def _refuse(generation: Generation, problem: str, *, hint: str = "") -> NoReturn:
    raise EngineProtocolError(
        f"the reply of {generation.url} contradicts itself: {problem}",
        hint=hint,
        url=generation.url,
        problem=problem,
        sampled_tokens=len(generation.ids),
    )


def choose_versions(
    generation: Generation, *, is_abort_mode: bool, started_version: str | None, is_disturbed: bool
) -> tuple[VersionSpan, ...]:
    """Find the weight version that sampled each token.

    The engine's own spans are taken as they are, and tokens that they leave out have no version. A single version is
    that of the request's end. It covers all tokens when an update ends every running request, and otherwise only when
    the engine had the same version at the turn's start and nothing happened between. An unknown version is None.

    Args:
        generation: the reply.
        is_abort_mode: True if the trainer's updates end all running requests.
        started_version: the version that the engine had at the turn's start; None when unknown.
        is_disturbed: True if a pause began or the request was retracted while the turn ran.
    """
    count = len(generation.ids)
    if generation.spans:
        return fill_spans(generation.spans, count)
    version = generation.weight_version
    is_known = is_abort_mode or (version == started_version and not is_disturbed and not generation.num_retractions)
    return (VersionSpan(version=version if is_known else None, start=0, stop=count),) if count else ()


def fill_spans(spans: tuple[VersionSpan, ...], count: int) -> tuple[VersionSpan, ...]:
    """Fill the gaps between spans with spans of no version, so that they cover 0..count.

    Raises:
        EngineProtocolError: two spans overlap or the last ends after ``count``.
    """
    filled: list[VersionSpan] = []
    position = 0
    for span in sorted(spans, key=lambda each: each.start):
        if span.start < position or span.stop > count:
            raise EngineProtocolError(
                f"version span {span.start}..{span.stop} does not fit after {position} of {count}"
            )
        if span.start > position:
            filled.append(VersionSpan(version=None, start=position, stop=span.start))
        filled.append(span)
        position = span.stop
    if position < count:
        filled.append(VersionSpan(version=None, start=position, stop=count))
    return tuple(filled)


def is_stop_token_missing(generation: Generation, stop_token_ids: Collection[int]) -> bool:
    """Return True if the model stopped by a token that the engine left out of the ids.

    The answer is True only where that is certain: the engine names a token that matched, or names neither a token nor a
    stop string, and the ids do not end in a stop token.
    """
    if generation.finish_reason not in (FinishReason.STOP, FinishReason.TOOL_CALLS) or not len(generation.ids):
        return False
    last = int(generation.ids[-1])
    if isinstance(generation.matched_stop, int):
        return last != generation.matched_stop
    return generation.matched_stop is None and bool(stop_token_ids) and last not in stop_token_ids


def build_completion(
    generation: Generation,
    *,
    prompt_tokens: int,
    versions: tuple[VersionSpan, ...],
    stop_token_ids: Collection[int] = (),
    channels: Mapping[str, Items] | None = None,
    marks: Mapping[str, Any] | None = None,
    response_id: str = "",
    started_at: float = 0.0,
    finished_at: float = 0.0,
) -> Completion:
    """Build the completion of a reply that `check_generation` accepted.

    Args:
        generation: the reply, not an aborted one.
        prompt_tokens: the number of ids that were sent; the engine cannot have cached more.
        versions: from `choose_versions`, or of joined reply parts.
        stop_token_ids: the family's stop tokens, by which a token that was left out of the ids is noticed.
        channels: what the turn keeps of side channels.
        marks: the turn's marks so far; those of the reply itself are added.
        response_id: the id under which the reply is delivered; empty takes the engine's own.
        started_at: Unix seconds.
        finished_at: Unix seconds.
    """
    found: dict[str, Any] = dict(marks or {})
    if is_stop_token_missing(generation, stop_token_ids):
        found["stop_token_missing"] = True
    if generation.prompt_tokens is None:
        found["prompt_unverified"] = True
    if generation.cached_tokens > prompt_tokens:
        found["cached_tokens_reported"] = generation.cached_tokens
    if generation.dropped_fields:
        found["dropped_fields"] = list(generation.dropped_fields)
    if generation.num_retractions:
        found["num_retractions"] = generation.num_retractions
    return Completion(
        ids=generation.ids,
        logprobs=generation.logprobs,
        message=generation.message,
        finish_reason=FinishReason(generation.finish_reason),
        versions=versions,
        weight_version=generation.weight_version,
        channels=channels or {},
        matched_stop=generation.matched_stop,
        top_logprobs=generation.top_logprobs,
        cached_tokens=min(generation.cached_tokens, prompt_tokens),
        response_id=response_id or generation.response_id,
        meta=generation.meta,
        marks=found,
        started_at=started_at,
        finished_at=finished_at,
    )
