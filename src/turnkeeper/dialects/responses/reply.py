"""A reply as a Responses object: its items, how it ended, what it cost. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnkeeper.dialects.opaque_reasoning import encode_reasoning
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.responses.ids import (
    CALL,
    CUSTOM_CALL,
    RAW_CUSTOM_CALL,
    REASONING,
    TEXT,
    name_item,
)
from turnkeeper.dialects.responses.tools import ResponsesTools, find_custom_input
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesReplyForm:
    """The form that a request wants its reply in."""

    model: str
    tools: ResponsesTools
    wants_encrypted_reasoning: bool
    """Whether reasoning carries ``encrypted_content``."""
    echoed: JsonObject
    """The fields of the request that the response repeats."""

    def build_response(self, response_id: str, created_s: int, **members: Any) -> JsonObject:
        """Build a ``response`` object with all its members.

        Args:
            response_id: the id of the reply.
            created_s: Unix seconds.
            members: the members in which it differs from a response that has just begun.
        """
        return {
            "id": response_id,
            "object": "response",
            "created_at": created_s,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": [],
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None,
            **self.echoed,
            **members,
        }

    def build_items(self, reply: AgentReply) -> Iterator[JsonObject]:
        """Build the items: reasoning, message and calls, where there are any; an empty reply has an empty message."""
        message = reply.message
        reasoning, content, calls = message.get("reasoning_content"), message.get("content"), message.get("tool_calls")
        if reasoning:
            yield self.build_reasoning(reply.response_id, reasoning)
        if content or not calls:
            yield build_text(reply.response_id, content or "")
        for place, call in enumerate(calls or ()):
            yield self.build_call(reply.response_id, place, call)

    def build_reasoning(self, response_id: str, text: str, part: int = 0) -> JsonObject:
        """Build a reasoning item; its text stands in the summary, which every client keeps."""
        return {
            "id": name_item(REASONING, response_id, 0, part),
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}],
            "encrypted_content": encode_reasoning(text) if self.wants_encrypted_reasoning else None,
            "status": "completed",
        }

    def build_call(self, response_id: str, place: int, call: JsonObject) -> JsonObject:
        """Build a function call, or the custom call that it stands for; ``place`` is its place among the calls."""
        function: JsonObject = call["function"]
        origin = self.tools.get_origin(function["name"])
        named: JsonObject = {"call_id": call["id"], "name": origin.name, "status": "completed"}
        if origin.namespace is not None:
            named["namespace"] = origin.namespace
        if not origin.is_custom:
            item_id = name_item(CALL, response_id, place)
            return {"id": item_id, "type": "function_call", "arguments": function["arguments"], **named}
        text = find_custom_input(function["arguments"])
        kind = CUSTOM_CALL if text is not None else RAW_CUSTOM_CALL
        given = text if text is not None else function["arguments"]
        return {"id": name_item(kind, response_id, place), "type": "custom_tool_call", "input": given, **named}


def build_text(response_id: str, text: str, part: int = 0) -> JsonObject:
    """Build a message item."""
    return {
        "id": name_item(TEXT, response_id, 0, part),
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [build_part(text)],
    }


def build_part(text: str) -> JsonObject:
    """Build the one part of a message item."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def describe_end(reply: AgentReply) -> JsonObject:
    """Build ``status`` and ``incomplete_details``."""
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    if reply.finish_reason not in reasons:
        return {"status": "completed", "incomplete_details": None}
    return {"status": "incomplete", "incomplete_details": {"reason": reasons[reply.finish_reason]}}


def build_usage(reply: AgentReply) -> JsonObject:
    """Build the token counts."""
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
