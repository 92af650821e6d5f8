"""SGLang's native route: ``/generate`` bodies in, ``meta_info`` out, by the shapes of `turnkeeper.tiny.wire`.

Knows no HTTP and no chat.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.tiny.model import TinyShape
from turnkeeper.tiny.scheduler import Delta, EngineRequest, Finish, FinishKind, OutputTokens, Result, SamplingParams
from turnkeeper.tiny.server.fields import Fields
from turnkeeper.tiny.wire import MetaInfo, explain_length, explain_rows_start, explain_untruncated

DEFAULT_NEW_TOKENS = 128
"""What ``/generate`` samples at most, when the request does not say."""

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""Constraints that SGLang takes and this engine has no grammar for; they are refused, never ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaOptions:
    """The parts of ``meta_info`` that a request asks for."""

    has_logprobs: bool = False

    rows_start: int | None = None
    """The first routing row wanted; None for no rows."""

    has_masks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """A parsed ``/generate`` body."""

    request: EngineRequest
    meta: MetaOptions


def parse_generate(fields: Fields, shape: TinyShape, prompt_ids: Any = None) -> GenerateCall:
    """Read a ``/generate`` body.

    Args:
        fields: the body.
        shape: for the vocabulary and the longest prompt.
        prompt_ids: of the body's ``text``, where it has no ``input_ids``.

    Raises:
        RequestError: a member is missing, malformed or asks for what this engine has not.
    """
    ids = fields.token_ids("input_ids", vocab_size=shape.vocab_size)
    ids = prompt_ids if ids is None else ids
    if ids is None:
        raise RequestError("give the prompt as input_ids or text", param="input_ids")
    has_logprobs = fields.flag("return_logprob")
    top = fields.integer("top_logprobs_num", 0) or 0
    params = parse_sampling(fields.object("sampling_params"), shape, top_logprobs=top if has_logprobs else 0)
    request = EngineRequest(
        rid=fields.text("rid") or uuid.uuid4().hex,
        prompt_ids=ids,
        params=params,
        cache_salt=fields.text("cache_salt") or fields.text("extra_key") or "",
        is_streamed=fields.flag("stream"),
        has_masks=parse_masks(fields, params),
    )
    check_length(len(ids), params.max_new_tokens, shape)
    rows = parse_rows_start(fields, len(ids))
    meta = MetaOptions(has_logprobs=has_logprobs, rows_start=rows, has_masks=request.has_masks)
    return GenerateCall(request=request, meta=meta)


def parse_sampling(fields: Fields, shape: TinyShape, *, top_logprobs: int) -> SamplingParams:
    """Read ``sampling_params``."""
    for name in GRAMMARS:
        if fields.find(name) is not None:
            raise RequestError(f"the embedded engine has no grammars: {name} must be left out", param=name)
    require_one(fields)
    return SamplingParams(
        max_new_tokens=fields.integer("max_new_tokens", DEFAULT_NEW_TOKENS),
        min_new_tokens=fields.integer("min_new_tokens", 0) or 0,
        stop=fields.texts("stop"),
        seed=fields.integer("sampling_seed"),
        top_logprobs=top_logprobs,
        **parse_common(fields, shape),
    )


def parse_common(fields: Fields, shape: TinyShape) -> dict[str, Any]:
    """Parse the sampling members that both wires spell alike, as arguments of `SamplingParams`."""
    return {
        "temperature": fields.number("temperature", 1.0),
        "top_p": fields.number("top_p", 1.0),
        "top_k": fields.integer("top_k", -1),
        "min_p": fields.number("min_p", 0.0),
        "frequency_penalty": fields.number("frequency_penalty", 0.0),
        "presence_penalty": fields.number("presence_penalty", 0.0),
        "repetition_penalty": fields.number("repetition_penalty", 1.0),
        "logit_bias": _parse_bias(fields.object("logit_bias"), shape),
        "stop_token_ids": frozenset(_in_vocabulary("stop_token_ids", fields.integers("stop_token_ids"), shape)),
        "ignore_eos": fields.flag("ignore_eos"),
        "skip_special_tokens": fields.flag("skip_special_tokens", True),
        "no_stop_trim": fields.flag("no_stop_trim"),
    }


def require_one(fields: Fields) -> None:
    """Refuse several completions of one prompt: each is a request of its own here."""
    if fields.integer("n", 1) != 1:
        raise RequestError(f"the embedded engine gives one completion a request, got n={fields.find('n')}", param="n")


def check_length(prompt_tokens: int, max_new_tokens: int | None, shape: TinyShape) -> None:
    """Refuse what the model's positions cannot hold, before anything is queued."""
    limit = shape.max_position_embeddings
    problem = explain_length(prompt_tokens, limit)
    if problem is None and max_new_tokens is not None and prompt_tokens + max_new_tokens > limit:
        problem = (
            f"The prompt's {prompt_tokens} tokens and {max_new_tokens} new ones exceed the model's context length of "
            f"{limit} tokens."
        )
    if problem is not None:
        raise RequestError(problem, limit_tokens=limit)


def parse_rows_start(fields: Fields, prompt_tokens: int) -> int | None:
    """Parse the number of the first routing row that is wanted; None when none are.

    Raises:
        RequestError: a start outside the prompt.
    """
    start = fields.integer("routed_experts_start_len", 0) or 0
    problem = explain_rows_start(start, prompt_tokens)
    if problem is not None:
        raise RequestError(problem, param="routed_experts_start_len")
    return start if fields.flag("return_routed_experts") else None


def parse_masks(fields: Fields, params: SamplingParams) -> bool:
    """Parse whether sampling masks are wanted.

    Raises:
        RequestError: they are, of a sampler that leaves nothing out, or with logprobs of whole masks.
    """
    has_masks, mode = fields.flag("return_sampling_mask"), fields.text("sampling_logprobs_mode")
    if mode is not None and not has_masks:
        problem = "sampling_logprobs_mode needs return_sampling_mask"
        raise RequestError(problem, param="sampling_logprobs_mode")
    if mode not in (None, "selected"):
        problem = f"the embedded engine has the logprob of the sampled token alone: selected, got {mode!r}"
        raise RequestError(problem, param="sampling_logprobs_mode")
    problem = explain_untruncated(is_truncating=params.is_truncating or params.is_greedy)
    if has_masks and problem is not None:
        raise RequestError(problem, param="return_sampling_mask")
    return has_masks


def build_meta_info(result: Result, options: MetaOptions, latency_s: float) -> MetaInfo:
    """Build the ``meta_info`` of a finished request.

    A request that ended while it waited has neither ``prompt_tokens`` and ``cached_tokens`` nor rows and masks.
    """
    has_run, has_rows = result.cached_tokens is not None, options.rows_start is not None
    return MetaInfo(
        id=result.rid,
        finish_reason=encode_finish(result.finish, len(result.tokens.ids)),
        completion_tokens=len(result.tokens.ids),
        weight_version=result.weight_version,
        weight_versions=[(span.version, span.start, span.end) for span in result.spans],
        num_retractions=result.num_retractions,
        e2e_latency=latency_s,
        prompt_tokens=result.prompt_tokens if has_run else None,
        cached_tokens=result.cached_tokens,
        output_token_logprobs=pair_logprobs(result.tokens) if options.has_logprobs else None,
        output_top_logprobs=pair_tops(result.tokens) if options.has_logprobs else None,
        output_token_sampling_mask=pair_masks(result.tokens) if options.has_masks and has_run else None,
        routed_experts=result.experts[options.rows_start :] if has_rows and result.experts is not None else None,
    )


def build_chunk_info(request: EngineRequest, options: MetaOptions, delta: Delta, tokens: OutputTokens) -> MetaInfo:
    """Build the ``meta_info`` of a stream's event; the event repeats all tokens so far."""
    return MetaInfo(
        id=request.rid,
        finish_reason=None,
        completion_tokens=len(tokens.ids),
        weight_version=delta.weight_version,
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=delta.cached_tokens,
        output_token_logprobs=pair_logprobs(tokens) if options.has_logprobs else None,
        output_top_logprobs=pair_tops(tokens) if options.has_logprobs else None,
        output_token_sampling_mask=pair_masks(tokens) if options.has_masks else None,
    )


def encode_finish(finish: Finish, count: int) -> JsonObject:
    """Encode the ``finish_reason`` of ``meta_info``."""
    if finish.kind is FinishKind.LENGTH:
        return {"type": "length", "length": count}
    if finish.kind is FinishKind.STOP:
        return {"type": "stop", "matched": finish.matched}
    return {"type": "abort", "message": finish.message}


def pair_logprobs(tokens: OutputTokens) -> list[tuple[float | None, int]]:
    """Logprob and id of each token."""
    return list(zip(tokens.logprobs, tokens.ids, strict=True))


def pair_tops(tokens: OutputTokens) -> Sequence[Sequence[tuple[float, int]]] | None:
    """Pair each token with its runners-up; None where a request asked for none."""
    return tokens.tops if any(tokens.tops) else None


def pair_masks(tokens: OutputTokens) -> Sequence[tuple[Sequence[int], float]]:
    """Pair the ids that each token was drawn from with its logprob within them."""
    return [(mask.ids, mask.logprob) for mask in tokens.masks]


def _parse_bias(fields: Fields, shape: TinyShape) -> dict[int, float]:
    try:
        bias = {int(token): fields.number(token, 0.0) for token in fields.members}
    except ValueError:
        raise RequestError("logit_bias has token ids as its keys", param="logit_bias") from None
    _in_vocabulary("logit_bias", bias, shape)
    return bias


def _in_vocabulary(name: str, ids: Iterable[int], shape: TinyShape) -> tuple[int, ...]:
    ids = tuple(ids)
    for token in ids:
        if not 0 <= token < shape.vocab_size:
            raise RequestError(f"{name} holds {token}, the vocabulary ends at {shape.vocab_size - 1}", param=name)
    return ids
