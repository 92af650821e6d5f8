"""The tools of a Responses request as functions, and the way back.

::

    function                  -> the same function
    namespace ns {f, g}       -> functions ns__f, ns__g; a call of one names its namespace again
    custom (text or grammar)  -> a function of one string, ``input``; a call of it is a custom call again
    hosted (web_search, ...)  -> left out, with a note
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.dialects.members import get_flag, get_list, get_name, get_object, get_optional_object
from turnkeeper.dialects.tool_calls import parse_arguments
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject

INPUT = "input"
"""The name of the one parameter of a function that stands for a custom tool."""

_CHOICES = ("auto", "none", "required")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOrigin:
    """The tool that a function stands for."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesTools:
    """The tools that a request gives to the model, as functions, and the tool that each function stands for."""

    tools: tuple[JsonObject, ...] = ()
    """The tools as functions of chat completions."""
    origins: dict[str, ToolOrigin] = field(default_factory=dict[str, ToolOrigin])
    """The tool that each function stands for, by the name of the function."""
    notes: tuple[str, ...] = ()

    def get_origin(self, name: str) -> ToolOrigin:
        """Get the tool that a called function stands for; a function that no tool became stands for itself."""
        return self.origins.get(name) or ToolOrigin(name=name)


def parse_tools(value: Any) -> ResponsesTools:
    """Parse ``tools``.

    Raises:
        RequestError: by the path of the field; two tools that become one function.
    """
    builder = _Builder()
    for index, item in enumerate(get_list(value, "tools")):
        builder.add(get_object(item, f"tools[{index}]"), f"tools[{index}]", namespace=None)
    return ResponsesTools(tools=tuple(builder.tools), origins=builder.origins, notes=tuple(builder.notes))


def join_name(namespace: str | None, name: str) -> str:
    """Build the name of the function that stands for a tool of a namespace."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def render_custom_input(text: str) -> str:
    """Render the input of a custom tool as the arguments of the function that stands for it."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def find_custom_input(arguments: str) -> str | None:
    """Find the input of a custom tool in the arguments of its function; None where they are not one string."""
    value = parse_arguments(arguments)
    return value[INPUT] if value.keys() == {INPUT} and isinstance(value[INPUT], str) else None


def parse_choice(value: Any) -> JsonObject:
    """Parse ``tool_choice`` into that of chat completions; the result is empty where nothing is constrained.

    Raises:
        RequestError: a choice that cannot be kept to.
    """
    if value is None or value == "auto":
        return {}
    if isinstance(value, str):
        if value not in _CHOICES:
            raise RequestError(f"tool_choice must be one of {', '.join(_CHOICES)}, got {value!r}", param="tool_choice")
        return {"tool_choice": value}
    choice = get_object(value, "tool_choice")
    if choice.get("type") not in ("function", "custom"):
        raise RequestError(
            f"tool_choice.type must be function or custom, got {choice.get('type')!r}", param="tool_choice.type"
        )
    name = join_name(choice.get("namespace"), get_name(choice.get("name"), "tool_choice.name"))
    return {"tool_choice": {"type": "function", "function": {"name": name}}}


class _Builder:
    """Collects the functions that tools become."""

    def __init__(self) -> None:
        self.tools: list[JsonObject] = []
        self.origins: dict[str, ToolOrigin] = {}
        self.notes: list[str] = []

    def add(self, tool: JsonObject, where: str, *, namespace: str | None) -> None:
        match tool.get("type"):
            case "function":
                self._add_function(tool, where, namespace)
            case "custom":
                self._add_custom(tool, where, namespace)
            case "namespace" if namespace is None:
                self._add_namespace(tool, where)
            case kind:
                self.notes.append(f"left out {where}: {kind!r} runs on a server of its own")

    def _add_function(self, tool: JsonObject, where: str, namespace: str | None) -> None:
        function: JsonObject = {"name": get_name(tool.get("name"), f"{where}.name")}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        if tool.get("parameters") is not None:
            function["parameters"] = get_object(tool["parameters"], f"{where}.parameters")
        if tool.get("strict") is not None:
            function["strict"] = get_flag(tool, "strict")
        self._put(function, where, ToolOrigin(name=function["name"], namespace=namespace))

    def _add_custom(self, tool: JsonObject, where: str, namespace: str | None) -> None:
        name = get_name(tool.get("name"), f"{where}.name")
        parts = [str(tool["description"])] if tool.get("description") else []
        parts += _describe_format(get_optional_object(tool.get("format"), f"{where}.format"))
        schema = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
        function: JsonObject = {"name": name, "description": "\n\n".join(parts), "parameters": schema}
        self._put(function, where, ToolOrigin(name=name, namespace=namespace, is_custom=True))

    def _add_namespace(self, tool: JsonObject, where: str) -> None:
        namespace = get_name(tool.get("name"), f"{where}.name")
        if tool.get("description"):
            self.notes.append(f"left out {where}.description: functions have no namespaces")
        for index, item in enumerate(get_list(tool.get("tools"), f"{where}.tools")):
            place = f"{where}.tools[{index}]"
            self.add(get_object(item, place), place, namespace=namespace)

    def _put(self, function: JsonObject, where: str, origin: ToolOrigin) -> None:
        name = join_name(origin.namespace, origin.name)
        if name in self.origins:
            raise RequestError(f"{where} is the second tool that is called {name!r}", param=f"{where}.name")
        self.origins[name] = origin
        self.tools.append({"type": "function", "function": {**function, "name": name}})


def _describe_format(shape: JsonObject) -> Iterator[str]:
    if shape.get("type") == "grammar":
        yield f"{INPUT} follows this {shape.get('syntax') or 'lark'} grammar:\n{shape.get('definition') or ''}"
