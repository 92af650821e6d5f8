"""SGLang's native wire: ``/generate`` bodies in, replies and ``meta_info`` out.

Knows JSON shapes. Knows no HTTP and no chat.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pybase64

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.tiny.model import TinyShape
from turnkeeper.tiny.scheduler import EngineRequest, Finish, FinishKind, OutputTokens, Result, SamplingParams
from turnkeeper.tiny.server.fields import Fields

DEFAULT_NEW_TOKENS = 128
"""What ``/generate`` samples at most, when the request does not say."""

GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""Constraints that SGLang takes and this engine has no grammar for; they are refused, never ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaOptions:
    """What a request wants to know beside its text."""

    has_logprobs: bool = False

    rows_start: int | None = None
    """The first routing row wanted; None for no rows."""


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
    )
    check_length(len(ids), params.max_new_tokens, shape)
    rows = parse_rows_start(fields, len(ids))
    return GenerateCall(request=request, meta=MetaOptions(has_logprobs=has_logprobs, rows_start=rows))


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
    """The sampling members that both wires spell alike, as arguments of `SamplingParams`."""
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
    if prompt_tokens >= limit:
        raise RequestError(
            f"the prompt has {prompt_tokens} tokens, the model's context length is {limit} tokens", limit_tokens=limit
        )
    if max_new_tokens is not None and prompt_tokens + max_new_tokens > limit:
        raise RequestError(
            f"the prompt's {prompt_tokens} tokens and {max_new_tokens} new ones exceed the model's context length of "
            f"{limit} tokens",
            limit_tokens=limit,
        )


def parse_rows_start(fields: Fields, prompt_tokens: int) -> int | None:
    """The first routing row that is wanted; None when none are.

    Raises:
        RequestError: a start outside the prompt.
    """
    start = fields.integer("routed_experts_start_len", 0) or 0
    if not 0 <= start <= prompt_tokens:
        raise RequestError(
            f"routed_experts_start_len must lie in [0, {prompt_tokens}], the prompt's length; got {start}",
            param="routed_experts_start_len",
        )
    return start if fields.flag("return_routed_experts") else None


def build_meta_info(result: Result, options: MetaOptions, latency_s: float) -> JsonObject:
    """The ``meta_info`` of a finished request.

    A request that ended while it waited has neither ``prompt_tokens`` and ``cached_tokens`` nor rows.
    """
    meta: JsonObject = {
        "id": result.rid,
        "finish_reason": encode_finish(result.finish, len(result.tokens.ids)),
        "completion_tokens": len(result.tokens.ids),
        "weight_version": result.weight_version,
        "weight_versions": [{"version": s.version, "start": s.start, "end": s.end} for s in result.spans],
        "num_retractions": result.num_retractions,
        "e2e_latency": latency_s,
    }
    if result.cached_tokens is not None:
        meta |= {"prompt_tokens": result.prompt_tokens, "cached_tokens": result.cached_tokens}
    if options.has_logprobs:
        meta |= encode_logprobs(result.tokens)
    if options.rows_start is not None and result.experts is not None:
        rows = result.experts[options.rows_start :].astype("<i4")
        meta["routed_experts"] = pybase64.b64encode(rows.tobytes()).decode()
    return meta


def encode_finish(finish: Finish, count: int) -> JsonObject:
    """The ``finish_reason`` of ``meta_info``."""
    if finish.kind is FinishKind.LENGTH:
        return {"type": "length", "length": count}
    if finish.kind is FinishKind.STOP:
        return {"type": "stop", "matched": finish.matched}
    return {"type": "abort", "message": finish.message}


def encode_logprobs(tokens: OutputTokens) -> JsonObject:
    """``[[logprob, id, null], ...]`` of the output, and its runners-up where a request asked for them."""
    entries = [[logprob, token, None] for token, logprob in zip(tokens.ids, tokens.logprobs, strict=True)]
    fields: JsonObject = {"output_token_logprobs": entries}
    if any(tokens.tops):
        fields["output_top_logprobs"] = [[[logprob, token, None] for logprob, token in top] for top in tokens.tops]
    return fields


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
