"""Formats of tool calls, each of which both renders and parses them; and the format that spells calls as JSON.

Parsing keeps the sampled spelling of arguments where the format spells them as JSON, and renders them as JSON where it
does not. Text that is not a well-formed call stays text.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from turnkeeper.rendering.message import ToolCall, render_arguments
from turnkeeper.rendering.tool_calls.schema_types import ToolSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedToolCall:
    """One tool call of a completion."""

    name: str
    arguments: str
    """The arguments as the JSON text of an object, in the model's own spelling where the format is JSON."""
    id: str = ""
    """The id that the model gave to the call; empty where the format has no ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A position at which a section of tool calls may begin or end."""

    start: int
    end: int
    is_opening: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkedText:
    """The end of an answer, from the first marker of a section on.

    Letters of a marker that were sampled piece by piece are part of the text, and not among the markers.
    """

    text: str
    markers: tuple[Marker, ...]
    """The markers in order of their positions."""


TextOrCalls: TypeAlias = str | tuple[ParsedToolCall, ...]
"""A text, or the tool calls of one section."""


class ToolFormat(Protocol):
    """A format of tool calls, which stand in sections between two markers."""

    @property
    def opening(self) -> str:
        """The marker that begins a section."""
        ...

    @property
    def closing(self) -> str:
        """The marker that ends a section."""
        ...

    @property
    def before(self) -> str:
        """White space between the text of the answer and the first section."""
        ...

    @property
    def between(self) -> str:
        """White space between two sections."""
        ...

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Render all calls of a message, with the markers of their sections."""
        ...

    def parse(self, tail: MarkedText, schemas: ToolSchemas) -> Iterator[TextOrCalls]:
        """Yield the texts and the sections of the end of an answer in order; a malformed section is text.

        Args:
            tail: the text and its markers.
            schemas: the schemas of the tools' parameters, for formats that do not tell the type of a value.
        """
        ...


ParseSection: TypeAlias = Callable[[str, int], "Section | None"]
"""Parses the calls that begin at a position of a text; gives None where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The calls of a section, and the position behind them."""

    calls: tuple[ParsedToolCall, ...]
    end: int


def parse_sections(tail: MarkedText, parse_section: ParseSection) -> Iterator[TextOrCalls]:
    """Yield the texts and sections of a format whose calls show their own end, as JSON does, so that a marker inside a
    call is part of it."""
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
    """The format with one JSON object in each section: ``{"name": ..., "arguments": {...}}``."""

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    before: str = "\n"
    between: str = "\n"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Render each call as a section of its own."""
        return self.between.join(
            f'{self.opening}\n{{"name": "{call.name}", "arguments": {arguments}}}\n{self.closing}'
            for call in calls
            for arguments in (render_arguments(call.arguments),)
        )

    def parse(self, tail: MarkedText, schemas: ToolSchemas) -> Iterator[TextOrCalls]:
        """Yield the texts and sections in order; each section holds one call."""
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
    """The value of a member of a JSON object, and the text that spells it."""

    value: Any
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedObject:
    """A JSON object that was found in a text."""

    members: Mapping[str, Member]
    end: int
    """The position behind the closing brace."""


_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


def scan_object(text: str, position: int) -> ScannedObject | None:
    """Parse the JSON object that begins at a position of a text, white space skipped.

    Returns:
        The object; None where there is none, or where it has a key twice, so that its meaning is open.
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
    """Return the position of the next character that is not white space of JSON."""
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position
