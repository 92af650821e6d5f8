"""How a family spells tool calls: one value both writes and reads them.

Reading keeps the sampled spelling of arguments where the format spells them as JSON; where it spells them otherwise,
they are written as JSON. What is no call is None, and stays text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from turnkeeper.jsontypes import is_object
from turnkeeper.rendering.message import ToolCall, write_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedToolCall:
    """One call as the model spelled it."""

    name: str
    arguments: str
    """JSON text of an object."""
    id: str = ""
    """The id that the model itself wrote; empty where the format has none."""


Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Per tool its parameters' JSON schemas by name: ``{"look": {"at": {"type": "integer"}}}``."""


def read_schemas(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """The parameters of function tools, in nested or flat form; whatever is no schema is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function: Any = tool.get("function") or tool
        if not is_object(function):
            continue
        parameters: Any = function.get("parameters")
        properties: Any = parameters.get("properties") if is_object(parameters) else None
        found[str(function.get("name"))] = properties if is_object(properties) else {}
    return found


class ToolFormat(Protocol):
    """One spelling of tool calls, in a section between two markers."""

    @property
    def opening(self) -> str:
        """The marker that begins a section."""
        ...

    @property
    def closing(self) -> str:
        """The marker that ends it."""
        ...

    @property
    def before(self) -> str:
        """Layout between the answer's text and the first section."""
        ...

    @property
    def between(self) -> str:
        """Layout between two sections."""
        ...

    def write(self, calls: Sequence[ToolCall]) -> str:
        """All calls of a message, sections included."""
        ...

    def parse(self, section: str, schemas: Schemas) -> tuple[ParsedToolCall, ...] | None:
        """The calls of the text between the markers; None when it is not well-formed.

        Args:
            section: the text.
            schemas: the tools' parameters, for formats that leave the type of a value unsaid.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonToolFormat:
    """One JSON object a section: ``{"name": ..., "arguments": {...}}``."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    before: str = "\n"
    between: str = "\n"

    def write(self, calls: Sequence[ToolCall]) -> str:
        """One section a call."""
        return self.between.join(
            f'{self.opening}\n{{"name": "{call.name}", "arguments": {write_arguments(call.arguments)}}}\n{self.closing}'
            for call in calls
        )

    def parse(self, section: str, schemas: Schemas) -> tuple[ParsedToolCall, ...] | None:
        """The one call of a section."""
        members = scan_object(section)
        if members is None or not set(members) <= {"name", "arguments"}:
            return None
        name = members.get("name")
        arguments = members.get("arguments")
        if name is None or not isinstance(name.value, str) or not name.value:
            return None
        if arguments is not None and not isinstance(arguments.value, dict):
            return None
        return (ParsedToolCall(name=name.value, arguments=arguments.raw if arguments else "{}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a JSON object, with the text that spelled it."""

    value: Any
    raw: str


_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


def scan_object(text: str) -> dict[str, Member] | None:
    """The members of a JSON object, each with its own spelling; None when the text is not exactly one object.

    A key that comes twice makes it None: which one was meant is not ours to say.
    """
    members: dict[str, Member] = {}
    position = _skip(text, 0)
    if not text.startswith("{", position):
        return None
    position = _skip(text, position + 1)
    try:
        while not text.startswith("}", position):
            key, position = _DECODER.raw_decode(text, position)
            position = _skip(text, position)
            if not isinstance(key, str) or key in members or not text.startswith(":", position):
                return None
            start = _skip(text, position + 1)
            value, stop = _DECODER.raw_decode(text, start)
            members[key] = Member(value=value, raw=text[start:stop])
            position = _skip(text, stop)
            if text.startswith(",", position):
                position = _skip(text, position + 1)
            elif not text.startswith("}", position):
                return None
    except (ValueError, RecursionError):
        return None
    return members if _skip(text, position + 1) == len(text) else None


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position
