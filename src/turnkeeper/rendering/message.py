"""Text, reasoning and tool calls of chat messages, in whatever form a client sent them.

No function changes a message. A template gets a normalized copy: content is a string, reasoning is
``reasoning_content``, and tool arguments are the object that their JSON string spells.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeeper.jsontypes import JsonObject, Message, is_array, is_object

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles of a chat-completions conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a function by an assistant message."""

    name: str
    arguments: Any
    """The object that the JSON string of the arguments spells; the string itself where it spells no object."""
    id: str = ""


def get_role(message: Message) -> str:
    """Return the role of a message, or an empty string where the message has none."""
    role = message.get("role")
    return role if isinstance(role, str) else ""


def get_text(message: Message) -> str:
    """Return the content of a message as one string: text parts are joined, all other parts are left out."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    if not is_array(content):
        return ""
    texts: list[Any] = [part.get("text") if is_object(part) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def find_reasoning(message: Message) -> str | None:
    """Return the reasoning under ``reasoning_content`` or ``reasoning``; None where the message has neither."""
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if isinstance(value, str):
            return value
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningAndContent:
    """The reasoning and the answer of an assistant message."""

    reasoning: str | None
    """None where the message has no reasoning; an empty string is reasoning that is empty."""
    content: str


def split_reasoning(message: Message, opening: str, closing: str) -> ReasoningAndContent:
    """Split an assistant message into reasoning and answer, also where the content holds both with their markers."""
    content = get_text(message)
    reasoning = find_reasoning(message)
    if reasoning is None and closing in content:
        before, _, content = content.rpartition(closing)
        reasoning = before.split(closing, 1)[0].rpartition(opening)[2].strip("\n")
        content = content.lstrip("\n")
    return ReasoningAndContent(reasoning=reasoning, content=content)


def get_tool_calls(message: Message) -> tuple[ToolCall, ...]:
    """Return the tool calls of an assistant message in order."""
    calls: Any = message.get("tool_calls") or ()
    return tuple(_parse_call(call) for call in calls)


class OpenCalls:
    """Finds the tool call that a tool result answers.

    Where several calls have the same id, results answer the calls of the latest message, in order.
    """

    def __init__(self, earlier: Sequence[Message], messages: Sequence[Message]) -> None:
        """Collect the calls of ``earlier`` that tool results among ``messages`` may answer.

        The earlier messages are walked from the end, and no further than the oldest call that is needed.
        """
        self._calls: dict[str, list[ToolCall]] = {}
        self.last_name = ""
        """The name of the function that was called last; empty before the first call."""
        wanted = {_get_answered(message) for message in messages if get_role(message) == "tool"}
        start = len(earlier)
        while start and wanted:
            start -= 1
            wanted -= {call.id for call in get_tool_calls(earlier[start])}
        for message in earlier[start:]:
            self.take(message)

    def take(self, message: Message) -> ToolCall | None:
        """Go past the next message, and return the call that it answers where it is the result of a known call."""
        if get_role(message) == "tool":
            calls = self._calls.get(_get_answered(message), [])
            return calls.pop(0) if len(calls) > 1 else next(iter(calls), None)
        added: dict[str, list[ToolCall]] = {}
        for call in get_tool_calls(message):
            added.setdefault(call.id, []).append(call)
            self.last_name = call.name
        self._calls |= added
        return None


def _get_answered(message: Message) -> str:
    return str(message.get("tool_call_id"))


def _parse_call(call: Any) -> ToolCall:
    function: Any = call.get("function") or call
    return ToolCall(
        id=str(call.get("id") or ""),
        name=str(function.get("name") or ""),
        arguments=parse_arguments(function.get("arguments")),
    )


def parse_arguments(arguments: Any) -> Any:
    """Return tool arguments as the object that their JSON spells, so that a string and an object render alike.

    A string that spells no object is returned as it is. None and the empty string become ``{}``.
    """
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if is_object(parsed) else arguments


def render_json(value: Any, *, ensure_ascii: bool = False, **options: Any) -> str:
    """Render a value as JSON the way chat templates do: ``", "`` and ``": "``, no ASCII escapes, keys in order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def render_arguments(arguments: Any) -> str:
    """Render tool arguments as JSON; a string that spells no object stays as it is."""
    return arguments if isinstance(arguments, str) else render_json(arguments)


def normalize_message(message: Message) -> JsonObject:
    """Return a copy of a message in the form that chat templates expect."""
    copy: JsonObject = dict(message)
    copy["content"] = get_text(message)
    reasoning = find_reasoning(message)
    copy.pop("reasoning", None)
    copy.pop("reasoning_content", None)
    if reasoning is not None:
        copy["reasoning_content"] = reasoning
    if message.get("tool_calls"):
        copy["tool_calls"] = [_normalize_call(call) for call in message["tool_calls"]]
    else:
        copy.pop("tool_calls", None)
    return copy


def _normalize_call(call: Mapping[str, Any]) -> JsonObject:
    function: Mapping[str, Any] = call.get("function") or call
    inner = {**function, "arguments": parse_arguments(function.get("arguments"))}
    return {
        "type": "function",
        **{key: value for key, value in call.items() if key != "function"},
        "function": inner,
    }


def nest_tool(tool: Mapping[str, Any]) -> JsonObject:
    """Return a function tool in its nested form, ``{"type": "function", "function": {...}}``."""
    return dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}


def build_sglang_tool(tool: Mapping[str, Any]) -> JsonObject:
    """Return a function tool as SGLang's chat route hands it to the template.

    SGLang parses each tool into a model of four fields and renders the model: fields that the client left out appear
    with their defaults, other keys are dropped, and the keys stand in the order of the model.
    """
    nested = nest_tool(tool)
    function: Mapping[str, Any] = nested["function"]
    return {
        "type": nested.get("type") or "function",
        "function": {
            "description": function.get("description"),
            "name": function.get("name"),
            "parameters": function.get("parameters"),
            "strict": bool(function.get("strict")),
        },
    }
