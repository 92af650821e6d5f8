"""A reply as Anthropic's message: its blocks, why it stopped, what it cost. Pure."""

from collections.abc import Iterator
from typing import Any

from turnkeeper.dialects.opaque_reasoning import sign_thinking
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.tool_calls import parse_arguments
from turnkeeper.jsontypes import JsonObject, Message


def build_message(reply: AgentReply, model: str) -> JsonObject:
    """Build the whole ``message`` object."""
    return {
        **open_message(reply.response_id, model),
        "content": list(build_blocks(reply.message)),
        **describe_stop(reply),
        "usage": build_usage(
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            output_tokens=reply.completion_tokens,
        ),
    }


def open_message(response_id: str, model: str) -> JsonObject:
    """Build the members that a message has before it has content."""
    return {"id": response_id, "type": "message", "role": "assistant", "model": model}


def build_blocks(message: Message) -> Iterator[JsonObject]:
    """Build the blocks: thinking, text and calls, each where there is some.

    An empty reply has one empty text block, since clients take a message without blocks for a broken one.
    """
    reasoning, content, calls = message.get("reasoning_content"), message.get("content"), message.get("tool_calls")
    if reasoning:
        yield {"type": "thinking", "thinking": reasoning, "signature": sign_thinking(reasoning)}
    if content or not (reasoning or calls):
        yield {"type": "text", "text": content or ""}
    for call in calls or ():
        yield {**open_call(call), "input": parse_arguments(call["function"]["arguments"])}


def open_call(call: JsonObject) -> JsonObject:
    """Build a ``tool_use`` block whose input is still empty."""
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {}}


def describe_stop(reply: AgentReply) -> JsonObject:
    """Build ``stop_reason`` and ``stop_sequence``."""
    sequence = reply.matched_stop if isinstance(reply.matched_stop, str) else None
    if reply.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if reply.finish_reason == "content_filter":
        return {"stop_reason": "refusal", "stop_sequence": None}
    if reply.message.get("tool_calls"):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def build_usage(*, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Build the token counts; ``input_tokens`` leaves out the tokens that came from the engine's cache."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }
