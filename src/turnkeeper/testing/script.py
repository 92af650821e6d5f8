"""The replies of a scripted engine: one `ScriptedReply` for each generate call, and the bodies made of it.

Pure. `turnkeeper.tiny.wire` says how SGLang spells a reply. The rows are a function of the tokens, so that a test can
say what every row of a path must be: `scripted_rows`.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from turnkeeper.jsontypes import JsonObject
from turnkeeper.tiny import wire

DEFAULT_STOP_ID = 2
"""The stop token of default replies."""


class Phase(StrEnum):
    """Where a scripted fault strikes."""

    HEADERS = "headers"
    """The connection is cut before any byte of the reply."""
    BODY = "body"
    """The connection is cut in the middle of the body, whose announced length is longer."""
    TRUNCATED = "truncated"
    """The reply is complete as HTTP, and its JSON ends in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One answer to a generate call. Every field left alone gives an ordinary, sound reply."""

    text: str | None = None
    """The content; None gives "reply N"."""
    reasoning: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """Chat-completions tool calls, sent as they are (SGLang's extra ``index`` is added)."""
    ids: Sequence[int] | None = None
    """The sampled ids; None encodes the text with the engine's ``encode``, or makes some up, and adds the stop id."""
    logprobs: Sequence[float | None] | None = None
    """One per id; None gives -0.125 * (1 + index % 8)."""
    finish_reason: str = "stop"
    matched_stop: int | str | None = None
    """None gives the last id where the finish reason is stop."""
    cached_tokens: int = 0
    weight_version: str | None = None
    """None gives the engine's version at the end of the call."""
    spans: Sequence[tuple[str, int, int]] = ()
    """``weight_versions`` as (version, start, end); none sends no field, as older builds do."""
    num_retractions: int = 0
    rows_salt: int = 0
    """Shifts every row of the payload, as a prefill under other weights does."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Members put over ``meta_info``; a None value removes the member."""
    edit: Callable[[JsonObject], object] | None = None
    """Changes the finished reply object in place, whatever it does to its soundness."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    """The raw body instead of everything above: HTML, garbage, nothing."""
    fault: Phase | None = None
    chunk_ids: int = 3
    """How many ids each event of a streamed reply adds."""
    wait: asyncio.Event | None = None
    """The call is answered only once this is set; an abort or a pause that aborts ends the wait."""
    partial: int | None = None
    """How many ids an abort during ``wait`` finds sampled; None: the request was still waiting and has none."""


def scripted_rows(
    ids: Sequence[int] | NDArray[np.integer], *, layers: int, topk: int, experts: int, start: int = 0, salt: int = 0
) -> NDArray[np.int32]:
    """Build the routing rows of a path: shape [len(ids) - 1 - start, layers, topk], int32, distinct ids in each row.

    Row i is ``(7 * ids[i] + i + 3 * layer + salt + k) % experts``: it depends on the token, its position and the salt.
    """
    tokens = np.asarray(ids, dtype=np.int64)[:-1]
    base_R = (7 * tokens + np.arange(len(tokens)) + salt)[start:]
    base_RL = base_R[:, None] + 3 * np.arange(layers)
    return ((base_RL[:, :, None] + np.arange(topk)) % experts).astype(np.int32)


encode_payload = wire.encode_rows
"""Spells the rows of a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """The shape of the mixture of experts that a scripted engine pretends to serve."""

    layers: int = 2
    topk: int = 2
    experts: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTokens:
    """The ids of one answer, and how it ended."""

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    finish_reason: str
    is_waiting_abort: bool = False
    """Aborted before it ran: SGLang then leaves out the counts of the prompt and the rows."""


def build_sampled(
    reply: ScriptedReply, *, text: str, encode: Callable[[str], Sequence[int]] | None, stop_id: int, is_aborted: bool
) -> ScriptedTokens:
    """Build the ids that a reply stands for, cut where an abort found them."""
    ids = tuple(reply.ids) if reply.ids is not None else (*_make_ids(text, encode), stop_id)
    logprobs = (
        tuple(reply.logprobs) if reply.logprobs is not None else tuple(-0.125 * (1 + i % 8) for i in range(len(ids)))
    )
    if not is_aborted:
        return ScriptedTokens(ids=ids, logprobs=logprobs, finish_reason=reply.finish_reason)
    count = reply.partial or 0
    return ScriptedTokens(
        ids=ids[:count], logprobs=logprobs[:count], finish_reason="abort", is_waiting_abort=reply.partial is None
    )


def _make_ids(text: str, encode: Callable[[str], Sequence[int]] | None) -> Sequence[int]:
    return encode(text) if encode is not None else [16 + byte for byte in text.encode()]


def build_meta(
    request: JsonObject, reply: ScriptedReply, sampled: ScriptedTokens, *, rid: str, version: str, moe: MoeShape | None
) -> JsonObject:
    """Build ``meta_info`` for a request body with ``input_ids``."""
    prompt: list[int] = request["input_ids"]
    has_run = not sampled.is_waiting_abort
    info = wire.MetaInfo(
        id=rid,
        finish_reason={"type": sampled.finish_reason},
        completion_tokens=len(sampled.ids),
        weight_version=reply.weight_version or version,
        weight_versions=reply.spans or None,
        num_retractions=reply.num_retractions or None,
        e2e_latency=0.25,
        prompt_tokens=len(prompt) if has_run else None,
        cached_tokens=reply.cached_tokens if has_run else None,
        output_token_logprobs=list(zip(sampled.logprobs, sampled.ids, strict=False)),
        output_token_sampling_mask=_build_masks(sampled) if request.get("return_sampling_mask") and has_run else None,
    )
    meta = info.to_json()
    if moe is not None:
        meta |= _build_rows(request, [*prompt, *sampled.ids], reply.rows_salt, moe, has_run=has_run)
    meta |= reply.meta
    return {name: value for name, value in meta.items() if value is not None}


def scripted_mask(token: int) -> list[int]:
    """Build the mask that a token was drawn from: itself and two others, the sampled one in the middle."""
    return [token + 2, token, max(0, token - 1)]


def _build_masks(sampled: ScriptedTokens) -> list[tuple[Sequence[int], float]]:
    """Build each token's mask, with half of its log-probability within it."""
    pairs = zip(sampled.ids, sampled.logprobs, strict=True)
    return [(scripted_mask(token), (logprob or 0.0) / 2) for token, logprob in pairs]


def _build_rows(request: JsonObject, path: list[int], salt: int, moe: MoeShape, *, has_run: bool) -> JsonObject:
    def make(start: int) -> str:
        return encode_payload(
            scripted_rows(path, layers=moe.layers, topk=moe.topk, experts=moe.experts, start=start, salt=salt)
        )

    fields: JsonObject = {}
    if request.get("return_routed_experts") and has_run:
        fields["routed_experts"] = make(request.get("routed_experts_start_len", 0))
    if request.get("return_indexer_topk"):
        fields |= {"indexer_topk": make(0), "indexer_topk_num_layers": moe.layers}
    return fields


def build_chat_reply(
    request: JsonObject, reply: ScriptedReply, sampled: ScriptedTokens, meta: JsonObject, *, text: str
) -> JsonObject:
    """Build the body of ``/v1/chat/completions``, with just the members that the request asked for."""
    matched = reply.matched_stop
    if matched is None and sampled.finish_reason in ("stop", "tool_calls") and sampled.ids:
        matched = sampled.ids[-1]
    return wire.build_chat_reply(
        rid=meta.get("id"),
        created=1_700_000_000,
        model="scripted",
        message=wire.build_chat_message(text, reply.reasoning, reply.tool_calls),
        finish_reason=sampled.finish_reason,
        matched_stop=matched,
        logprobs={"content": []} if request.get("logprobs") else None,
        meta_info=meta if request.get("return_meta_info") else None,
        usage=wire.build_usage(
            prompt_tokens=len(request["input_ids"]),
            completion_tokens=len(sampled.ids),
            cached_tokens=reply.cached_tokens,
        ),
    )


def build_stream(value: JsonObject, chunk_ids: int, *, is_incremental: bool) -> bytes:
    """Build the event stream of a ``/generate`` reply: each event repeats what came before, unless the stream is
    incremental."""
    ids: list[int] = value["output_ids"]
    meta: JsonObject = value["meta_info"]
    events: list[bytes] = []
    for stop in [*range(chunk_ids, len(ids), chunk_ids), len(ids)]:
        start = max(0, (stop - 1) // chunk_ids * chunk_ids) if is_incremental else 0
        part = {**meta, "output_token_logprobs": meta["output_token_logprobs"][start:stop], "completion_tokens": stop}
        if stop < len(ids):
            part = {name: item for name, item in part.items() if name != "routed_experts"} | {"finish_reason": None}
        else:
            part["completion_tokens"] = meta["completion_tokens"]
        events.append(wire.frame_event(dump_reply({**value, "output_ids": ids[start:stop], "meta_info": part})))
    return b"".join([*events, wire.DONE_EVENT])


def dump_reply(value: JsonObject) -> bytes:
    """Write a reply as JSON, with NaN and infinities spelled as Python's writers spell them."""
    try:
        if b"null" not in (strict := orjson.dumps(value)):
            return strict
    except TypeError:
        pass
    return json.dumps(value).encode()
