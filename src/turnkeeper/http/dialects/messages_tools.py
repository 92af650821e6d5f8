"""Anthropic's tools, and what its request says about their use, in the form of chat completions."""

from dataclasses import dataclass, field
from typing import Any

from turnkeeper.errors import RequestError
from turnkeeper.http.dialects.fields import find_object, get_list, get_name, get_object, read_flag
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """What the model may call, and how."""

    tools: tuple[JsonObject, ...]
    """Function tools in chat-completions form."""
    forwarded: JsonObject = field(default_factory=dict[str, Any])
    """``tool_choice`` and ``parallel_tool_calls`` for the engine, where the request constrains it."""
    notes: tuple[str, ...] = ()


def parse_toolbox(tools: Any, choice: Any) -> Toolbox:
    """Read ``tools`` and ``tool_choice``; a server's tool, which has no ``input_schema``, is left out with a note.

    Raises:
        RequestError: by the path of the field.
    """
    parsed: list[JsonObject] = []
    notes: list[str] = []
    for index, item in enumerate(get_list(tools, "tools")):
        tool, where = get_object(item, f"tools[{index}]"), f"tools[{index}]"
        if tool.get("input_schema") is None:
            notes.append(
                f"left out tools[{index}]: {tool.get('type') or tool.get('name')!r} runs on a server of its own"
            )
        else:
            parsed.append(_parse_tool(tool, where))
    return Toolbox(tools=tuple(parsed), forwarded=_parse_choice(choice) if parsed else {}, notes=tuple(notes))


def _parse_tool(tool: JsonObject, where: str) -> JsonObject:
    function: JsonObject = {"name": get_name(tool.get("name"), f"{where}.name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = get_object(tool["input_schema"], f"{where}.input_schema")
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _parse_choice(value: Any) -> JsonObject:
    choice = find_object(value, "tool_choice")
    if not choice:
        return {}
    parallel: JsonObject = {"parallel_tool_calls": False} if read_flag(choice, "disable_parallel_tool_use") else {}
    match choice.get("type"):
        case "auto":
            return parallel
        case "any":
            return {"tool_choice": "required", **parallel}
        case "none":
            return {"tool_choice": "none"}
        case "tool":
            name = get_name(choice.get("name"), "tool_choice.name")
            return {"tool_choice": {"type": "function", "function": {"name": name}}, **parallel}
        case kind:
            raise RequestError(
                f"tool_choice.type must be auto, any, tool or none, got {kind!r}", param="tool_choice.type"
            )
