"""SGLang's wire as a server writes it, declared once for the servers of this package that speak it.

The embedded engine samples what it puts into these shapes, the scripted engine of `turnkeeper.testing` is told it, and
the mock of the bench writes it once and repeats the bytes. Shapes and words only: no engine, no HTTP.
`turnkeeper.engines.sglang` reads the wire, and shares nothing with this module, so that each can find the other wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from turnkeeper.jsontypes import JsonObject

GENERATE, CHAT = "/generate", "/v1/chat/completions"
"""The routes that generate: token ids in and out, and chat completions."""

PAUSE, CONTINUE = "/pause_generation", "/continue_generation"
FLUSH_CACHE, ABORT = "/flush_cache", "/abort_request"
UPDATE_WEIGHTS, UPDATE_VERSION = "/update_weights_from_disk", "/update_weight_version"
RELEASE_MEMORY, RESUME_MEMORY = "/release_memory_occupation", "/resume_memory_occupation"
"""The control routes, by which a trainer pauses an engine and updates its weights."""

HEALTH, READY, MODEL_INFO, MODELS = "/health", "/ready", "/model_info", "/v1/models"
"""The routes that describe an engine."""

DONE_EVENT = b"data: [DONE]\n\n"
"""The event that ends every stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaInfo:
    """``meta_info`` of a reply. A field that is None is left out, except the finish reason, which is then null."""

    id: str
    finish_reason: JsonObject | None
    """``{"type": "stop", "matched": ...}``, ``{"type": "length", ...}`` or ``{"type": "abort", ...}``; None while a
    stream goes on."""
    completion_tokens: int
    weight_version: str
    """The engine's version when the request ended."""
    weight_versions: Sequence[tuple[str, int, int]] | None = None
    """Version, start and end of each span of output tokens."""
    num_retractions: int | None = None
    e2e_latency: float | None = None
    """Seconds."""
    prompt_tokens: int | None = None
    """None for a request that ended while it waited."""
    cached_tokens: int | None = None
    output_token_logprobs: Sequence[tuple[float | None, int]] | None = None
    """Logprob and id of each output token."""
    output_top_logprobs: Sequence[Sequence[tuple[float, int]]] | None = None
    """Of each output token the most probable ones, logprob and id."""
    output_token_sampling_mask: Sequence[tuple[Sequence[int], float]] | None = None
    """Of each output token the ids that it was drawn from, and its logprob within them."""
    routed_experts: NDArray[np.int32] | None = None
    """[rows, layers, top-k]."""

    def to_json(self) -> JsonObject:
        """Spell the fields as SGLang does."""
        top = self.output_top_logprobs
        spans, sampled, masks = self.weight_versions, self.output_token_logprobs, self.output_token_sampling_mask
        optional: JsonObject = {
            "weight_versions": spans and [{"version": version, "start": a, "end": b} for version, a, b in spans],
            "num_retractions": self.num_retractions,
            "e2e_latency": self.e2e_latency,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_token_logprobs": None if sampled is None else encode_logprobs(sampled),
            "output_top_logprobs": None if top is None else [encode_logprobs(each) for each in top],
            "output_token_sampling_mask": None if masks is None else [ids for ids, _ in masks],
            "output_token_sampling_logprobs": None if masks is None else [logprob for _, logprob in masks],
            "output_token_sampling_mask_length": None if masks is None else len(masks),
            "routed_experts": None if self.routed_experts is None else encode_rows(self.routed_experts),
        }
        required: JsonObject = {
            "id": self.id,
            "finish_reason": self.finish_reason,
            "completion_tokens": self.completion_tokens,
            "weight_version": self.weight_version,
        }
        return required | {name: value for name, value in optional.items() if value is not None}


def encode_logprobs(pairs: Sequence[tuple[float | None, int]]) -> list[list[Any]]:
    """Spell pairs of logprob and id as ``[[logprob, id, null], ...]``; the third place is for a text, unused."""
    return [[logprob, token, None] for logprob, token in pairs]


def encode_rows(rows: NDArray[np.int32]) -> str:
    """Spell routing rows: base64 of the raw little-endian int32 bytes, the empty string for no rows."""
    return pybase64.b64encode(np.ascontiguousarray(rows, dtype="<i4").tobytes()).decode()


def build_generate_reply(*, text: str, ids: Sequence[int], meta_info: JsonObject) -> JsonObject:
    """Build the body of ``/generate``, or of one event of its stream."""
    return {"text": text, "output_ids": list(ids), "meta_info": meta_info}


def build_chat_reply(
    *,
    rid: str | None,
    created: int,
    model: str,
    message: JsonObject,
    finish_reason: str,
    matched_stop: int | str | None,
    logprobs: JsonObject | None,
    meta_info: JsonObject | None = None,
    usage: JsonObject | None = None,
) -> JsonObject:
    """Build the body of ``/v1/chat/completions``; ``meta_info`` stands last, and is left out where it is None."""
    choice: JsonObject = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "matched_stop": matched_stop,
    }
    if meta_info is not None:
        choice["meta_info"] = meta_info
    head: JsonObject = {"id": rid, "object": "chat.completion", "created": created, "model": model}
    return head | ({} if usage is None else {"usage": usage}) | {"choices": [choice]}


def build_chat_message(
    content: str | None, reasoning: str | None, tool_calls: Sequence[Mapping[str, Any]]
) -> JsonObject:
    """Build the message of a chat reply; its tool calls are numbered, which OpenAI's are only in streams."""
    message: JsonObject = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    if tool_calls:
        message["tool_calls"] = number_calls(tool_calls)
    return message


def number_calls(calls: Sequence[Mapping[str, Any]], start: int = 0) -> list[JsonObject]:
    """Give each tool call its ``index``."""
    return [{"index": index, **call} for index, call in enumerate(calls, start)]


def build_usage(*, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> JsonObject:
    """Build the token counts of a chat reply."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def build_pause_reply(message: str) -> JsonObject:
    """Build the answer to a pause or its end."""
    return {"status": "ok", "message": message}


def build_update_reply(message: str, *, is_done: bool = True, **members: Any) -> JsonObject:
    """Build the answer to an update of weights or of their version; it says itself whether it succeeded."""
    return {"success": is_done, "message": message, **members}


def build_model_info(*, model_path: str, weight_version: str, context_length: int, **members: Any) -> JsonObject:
    """Build the answer of ``/model_info``."""
    return {
        "model_path": model_path,
        "weight_version": weight_version,
        "context_length": context_length,
        **members,
    }


def build_model_list(name: str, **members: Any) -> JsonObject:
    """Build the answer of ``/v1/models``, with the one model that an engine serves."""
    return {"object": "list", "data": [{"id": name, "object": "model", **members}]}


def frame_event(data: bytes) -> bytes:
    """Frame one server-sent event."""
    return b"data: " + data + b"\n\n"


def build_error(path: str, message: str, *, status: int = 400, param: object = None) -> JsonObject:
    """Build the body of a refusal in SGLang's two shapes: nested on ``/generate``, flat elsewhere."""
    if path == GENERATE:
        return {"error": {"message": message}}
    return {"object": "error", "message": message, "type": "BadRequestError", "param": param, "code": status}


def explain_length(prompt_tokens: int, limit_tokens: int) -> str | None:
    """Say why a prompt is refused for its length; None for one that fits."""
    if prompt_tokens < limit_tokens:
        return None
    return f"The input ({prompt_tokens} tokens) is longer than the model's context length ({limit_tokens} tokens)."


def explain_rows_start(start: object, prompt_tokens: int) -> str | None:
    """Say why ``routed_experts_start_len`` is refused; None for a start inside the prompt."""
    if isinstance(start, int) and 0 <= start <= prompt_tokens:
        return None
    return f"routed_experts_start_len must be in [0, {prompt_tokens}], got {start}"


def explain_untruncated(*, is_truncating: bool) -> str | None:
    """Say why ``return_sampling_mask`` is refused; None where the sampler draws from a part of the vocabulary."""
    if is_truncating:
        return None
    return "return_sampling_mask cannot return the whole vocabulary: set top_p below 1, a top_k, min_p or temperature 0"
