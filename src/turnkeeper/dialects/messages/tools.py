"""Anthropic's tools, and what its request says about their use, in the form of chat completions.

A tool with ``defer_loading`` is not rendered with the others: it is loaded by a ``tool_reference`` in a tool result,
where its definition is written. The text of a definition is fixed, since prompts and replays depend on it.

::

    tools     f, g (deferred), h (deferred)
    messages  ... tool_result [tool_reference g] ...        the prompt has f, and g's definition in that result
                                                            the policy may call f and g
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.dialects.members import get_flag, get_list, get_name, get_object, get_optional_object
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, is_array, is_object


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesTools:
    """The tools that a request gives to the model."""

    tools: tuple[JsonObject, ...]
    """The tools that stand in the prompt, as functions of chat completions."""
    deferred: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """The tools that a reference loads later, by their names."""
    notes: tuple[str, ...] = ()

    def find_definition(self, name: str) -> str | None:
        """Find the text that a reference to this tool becomes; None where the request has no such tool."""
        tool = self.deferred.get(name) or next((each for each in self.tools if _get_name(each) == name), None)
        return None if tool is None else render_definition(tool)

    def list_loaded(self, names: Iterable[str]) -> tuple[JsonObject, ...]:
        """List the deferred tools that are referenced, each once, in the order of the references."""
        return tuple(self.deferred[name] for name in dict.fromkeys(names) if name in self.deferred)


def render_definition(tool: JsonObject) -> str:
    """Render a tool as the JSON that chat templates write, with the keys of its schema sorted.

    Clients may send the keys in any order, and the prompt must not depend on it.
    """
    function = dict(tool["function"])
    function["parameters"] = _sort_keys(function["parameters"])
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def parse_tools(tools: Any) -> MessagesTools:
    """Parse ``tools``; a tool that runs on a server of its own has no ``input_schema``, and is left out with a note.

    Raises:
        RequestError: by the path of the field.
    """
    parsed: list[JsonObject] = []
    deferred: dict[str, JsonObject] = {}
    notes: list[str] = []
    for index, item in enumerate(get_list(tools, "tools")):
        tool, where = get_object(item, f"tools[{index}]"), f"tools[{index}]"
        if tool.get("input_schema") is None:
            notes.append(
                f"left out tools[{index}]: {tool.get('type') or tool.get('name')!r} runs on a server of its own"
            )
        elif get_flag(tool, "defer_loading"):
            function = _parse_tool(tool, where)
            deferred.setdefault(_get_name(function), function)
        else:
            parsed.append(_parse_tool(tool, where))
    return MessagesTools(tools=tuple(parsed), deferred=deferred, notes=tuple(notes))


def _parse_tool(tool: JsonObject, where: str) -> JsonObject:
    function: JsonObject = {"name": get_name(tool.get("name"), f"{where}.name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = get_object(tool["input_schema"], f"{where}.input_schema")
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def parse_choice(value: Any) -> JsonObject:
    """Parse ``tool_choice`` into ``tool_choice`` and ``parallel_tool_calls`` of chat completions.

    The result is empty where the request constrains nothing.

    Raises:
        RequestError: by the path of the field.
    """
    choice = get_optional_object(value, "tool_choice")
    if not choice:
        return {}
    parallel: JsonObject = {"parallel_tool_calls": False} if get_flag(choice, "disable_parallel_tool_use") else {}
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


def _get_name(tool: JsonObject) -> str:
    return tool["function"]["name"]


def _sort_keys(value: Any) -> Any:
    if is_object(value):
        return {key: _sort_keys(value[key]) for key in sorted(value)}
    return [_sort_keys(item) for item in value] if is_array(value) else value
