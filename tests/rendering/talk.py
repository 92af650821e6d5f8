"""Messages for tests of rendering, short to write."""

import json
from typing import Any

from turnkeeper.jsontypes import JsonObject, Message


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def assistant(text: str = "", *calls: JsonObject, reasoning: str | None = None) -> Message:
    message: JsonObject = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(name: str, arguments: Any, number: int = 0) -> JsonObject:
    """A tool call; arguments that are no string are spelled as JSON."""
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": f"functions.{name}:{number}", "type": "function", "function": {"name": name, "arguments": spelled}}


def tool(text: str, number: int = 0, name: str = "look") -> Message:
    return {"role": "tool", "content": text, "tool_call_id": f"functions.{name}:{number}", "name": name}


LOOK: JsonObject = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]},
    },
}
