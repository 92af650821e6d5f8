"""How a family spells tool calls: one value both writes and reads them.

Reading keeps the sampled spelling of arguments where the format spells them as JSON; where it spells them otherwise,
they are written as JSON. What is no call stays text.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from turnkeeper.rendering.message import ToolCall, render_arguments
from turnkeeper.rendering.tool_calls.schema_types import ToolSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedToolCall:
    """One call as the model spelled it."""

    name: str
    arguments: str
    """JSON text of an object."""
    id: str = ""
    """The id that the model itself wrote; empty where the format has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Where a section of tool calls may begin or end."""

    start: int
    end: int
    is_opening: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText:
    """The end of an answer, from the first marker of a section on.

    The letters of a marker that were sampled piecewise stand in the text, but are no marker.
    """

    text: str
    markers: tuple[Marker, ...]
    """In order."""


TextOrCalls: TypeAlias = str | tuple[ParsedToolCall, ...]
"""A text, or the calls of one section."""


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

    def render(self, calls: Sequence[ToolCall]) -> str:
        """All calls of a message, sections included."""
        ...

    def parse(self, tail: MarkedText, schemas: ToolSchemas) -> Iterator[TextOrCalls]:
        """The texts and sections of an answer's end, in order. What is no well-formed section is text.

        Args:
            tail: the text and its markers.
            schemas: the tools' parameters, for formats that leave the type of a value unsaid.
        """
        ...


ParseSection: TypeAlias = Callable[[str, int], "Section | None"]
"""Reads the calls that begin at a place of a text; None where none do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The calls of a section, and where they end."""

    calls: tuple[ParsedToolCall, ...]
    end: int


def parse_sections(tail: MarkedText, parse_section: ParseSection) -> Iterator[TextOrCalls]:
    """Sections whose calls say themselves where they end, as JSON does: markers inside of them are text."""
    closings = {marker.start: marker.end for marker in tail.markers if not marker.is_opening}
    position = 0
    for marker in tail.markers:
        if not marker.is_opening or marker.start < position:
            continue
        section = parse_section(tail.text, marker.end)
        end = closings.get(skip_space(tail.text, section.end)) if section else None
        if section is None or end is None:
            continue
        yield tail.text[position : marker.start]
        yield section.calls
        position = end
    yield tail.text[position:]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonToolFormat:
    """One JSON object a section: ``{"name": ..., "arguments": {...}}``."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    before: str = "\n"
    between: str = "\n"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """One section a call."""
        return self.between.join(
            f'{self.opening}\n{{"name": "{call.name}", "arguments": {arguments}}}\n{self.closing}'
            for call in calls
            for arguments in (render_arguments(call.arguments),)
        )

    def parse(self, tail: MarkedText, schemas: ToolSchemas) -> Iterator[TextOrCalls]:
        """One call a section."""
        return parse_sections(tail, _parse_call)


def _parse_call(text: str, position: int) -> Section | None:
    found = scan_object(text, position)
    if found is None or not set(found.members) <= {"name", "arguments"}:
        return None
    name = found.members.get("name")
    arguments = found.members.get("arguments")
    if name is None or not isinstance(name.value, str) or not name.value:
        return None
    if arguments is not None and not isinstance(arguments.value, dict):
        return None
    call = ParsedToolCall(name=name.value, arguments=arguments.raw if arguments else "{}")
    return Section(calls=(call,), end=found.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a JSON object, with the text that spelled it."""

    value: Any
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedObject:
    """A JSON object in a text."""

    members: Mapping[str, Member]
    end: int
    """The place behind its last brace."""


_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


def scan_object(text: str, position: int) -> ScannedObject | None:
    """The JSON object that begins at a place of a text, behind whitespace; None when none does.

    A key that comes twice makes it None: which one was meant is not ours to say.
    """
    members: dict[str, Member] = {}
    position = skip_space(text, position)
    if not text.startswith("{", position):
        return None
    position = skip_space(text, position + 1)
    try:
        while not text.startswith("}", position):
            key, position = _DECODER.raw_decode(text, position)
            position = skip_space(text, position)
            if not isinstance(key, str) or key in members or not text.startswith(":", position):
                return None
            start = skip_space(text, position + 1)
            value, stop = _DECODER.raw_decode(text, start)
            members[key] = Member(value=value, raw=text[start:stop])
            position = skip_space(text, stop)
            if text.startswith(",", position):
                position = skip_space(text, position + 1)
            elif not text.startswith("}", position):
                return None
    except (ValueError, RecursionError):
        return None
    return ScannedObject(members=members, end=position + 1)


def skip_space(text: str, position: int) -> int:
    """The place of the next character that is no whitespace of JSON."""
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position
