"""Chat completions as SGLang speaks them: bodies in, replies and stream chunks out. Knows JSON shapes, no HTTP."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import ParsedToolCall
from turnkeeper.tiny import wire
from turnkeeper.tiny.codec import ChatCodec
from turnkeeper.tiny.model import TinyShape
from turnkeeper.tiny.scheduler import EngineRequest, FinishKind, OutputTokens, Result, SamplingParams, Vocabulary
from turnkeeper.tiny.server.fields import Fields
from turnkeeper.tiny.server.generate import (
    MetaOptions,
    build_meta_info,
    check_length,
    parse_common,
    parse_masks,
    parse_rows_start,
    require_one,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyChatCall:
    """A parsed chat body."""

    request: EngineRequest
    model: str
    created: int
    """Seconds since the epoch."""

    has_tools: bool
    is_reasoning_separate: bool
    has_meta_info: bool
    has_usage_chunk: bool
    meta: MetaOptions


def parse_chat(fields: Fields, shape: TinyShape, codec: ChatCodec, *, model: str, created: int) -> TinyChatCall:
    """Read a chat body.

    Args:
        fields: the body.
        shape: for the vocabulary and the longest prompt.
        codec: renders the prompt of a body without ``input_ids``.
        model: the name to echo when the body has none.
        created: the time to echo.

    Raises:
        RequestError: a member is missing, malformed or asks for what this engine has not.
    """
    messages = fields.objects("messages")
    if not messages:
        raise RequestError("messages must be a list of at least one message, also beside input_ids", param="messages")
    _refuse_unknown_constraints(fields)
    is_streamed = fields.flag("stream")
    has_meta_info = fields.flag("return_meta_info")
    if has_meta_info and is_streamed:
        raise RequestError("return_meta_info cannot be combined with stream", param="return_meta_info")
    if fields.flag("return_sampling_mask") and not has_meta_info:
        raise RequestError("return_sampling_mask requires return_meta_info", param="return_sampling_mask")
    tools = fields.objects("tools") if fields.find("tool_choice") != "none" else []
    ids = fields.token_ids("input_ids", vocab_size=shape.vocab_size)
    if ids is None:
        arguments = fields.object("chat_template_kwargs").members
        is_continued = fields.flag("continue_final_message")
        ids = codec.render(messages, tools, arguments, is_continued=is_continued)
    params = _parse_sampling(fields, shape)
    check_length(len(ids), params.max_new_tokens, shape)
    has_masks = parse_masks(fields, params)
    return TinyChatCall(
        request=EngineRequest(
            rid=fields.text("rid") or uuid.uuid4().hex,
            prompt_ids=ids,
            params=params,
            cache_salt=fields.text("cache_salt") or "",
            is_streamed=is_streamed,
            has_masks=has_masks,
        ),
        model=fields.text("model") or model,
        created=created,
        has_tools=bool(tools),
        is_reasoning_separate=fields.flag("separate_reasoning", True),
        has_meta_info=has_meta_info,
        has_usage_chunk=fields.object("stream_options").flag("include_usage"),
        meta=MetaOptions(
            has_logprobs=fields.flag("logprobs"),
            rows_start=parse_rows_start(fields, len(ids)),
            has_masks=has_masks,
        ),
    )


def _parse_sampling(fields: Fields, shape: TinyShape) -> SamplingParams:
    most = fields.integer("max_completion_tokens")
    top = fields.integer("top_logprobs", 0) or 0
    return SamplingParams(
        max_new_tokens=fields.integer("max_tokens") if most is None else most,
        min_new_tokens=fields.integer("min_tokens", 0) or 0,
        stop=fields.texts("stop"),
        seed=fields.integer("seed"),
        top_logprobs=top if fields.flag("logprobs") else 0,
        **parse_common(fields, shape),
    )


def _refuse_unknown_constraints(fields: Fields) -> None:
    require_one(fields)
    if fields.object("response_format").text("type") not in (None, "text"):
        raise RequestError("the embedded engine has no grammars: response_format must be text", param="response_format")
    if fields.find("tool_choice") not in (None, "auto", "none"):
        raise RequestError("the embedded engine has no grammars: tool_choice must be auto or none", param="tool_choice")


def build_chat_reply(
    call: TinyChatCall, result: Result, codec: ChatCodec, texts: Vocabulary, latency_s: float
) -> JsonObject:
    """Build the body of a finished chat completion."""
    reader = codec.new_reader(has_tools=call.has_tools, has_reasoning=call.is_reasoning_separate)
    reader.feed(result.text)
    reader.finish()
    reply = reader.reply
    return wire.build_chat_reply(
        rid=call.request.rid,
        created=call.created,
        model=call.model,
        message=wire.build_chat_message(reply.content, reply.reasoning, encode_tool_calls(reply.tool_calls)),
        finish_reason=name_finish(result, has_calls=bool(reply.tool_calls)),
        matched_stop=result.finish.matched,
        logprobs=encode_choice_logprobs(result.tokens, texts) if call.meta.has_logprobs else None,
        meta_info=build_meta_info(result, call.meta, latency_s).to_json() if call.has_meta_info else None,
        usage=count_usage(result),
    )


def name_finish(result: Result, *, has_calls: bool) -> str:
    """Name the choice's ``finish_reason``; a reply that stops with tool calls ends by them."""
    return "tool_calls" if has_calls and result.finish.kind is FinishKind.STOP else result.finish.kind


def count_usage(result: Result) -> JsonObject:
    """Count the tokens of a finished request by kind."""
    return wire.build_usage(
        prompt_tokens=result.prompt_tokens,
        completion_tokens=len(result.tokens.ids),
        cached_tokens=result.cached_tokens or 0,
    )


def encode_tool_calls(calls: Sequence[ParsedToolCall]) -> list[JsonObject]:
    """Tool calls as chat completions have them, with fresh ids where a call has none."""
    return [
        {
            "id": call.id or f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def encode_choice_logprobs(tokens: OutputTokens, texts: Vocabulary) -> JsonObject:
    """Encode the ``logprobs`` of a choice, in OpenAI's form."""

    def encode(logprob: float, token: int) -> JsonObject:
        spelled = texts.get_bytes(token)
        return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}

    content: list[Any] = [
        {**encode(logprob, token), "top_logprobs": [encode(*pair) for pair in top]}
        for token, logprob, top in zip(tokens.ids, tokens.logprobs, tokens.tops, strict=True)
    ]
    return {"content": content}
