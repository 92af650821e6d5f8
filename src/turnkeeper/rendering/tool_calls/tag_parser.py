r"""The parser of tool calls that are spelled as tags. It decides which tags are part of a value.

A value stands unescaped between its tags, so it may contain any tag itself, and a model may forget a tag::

    <function=write>\n<parameter=text>\nUse </parameter> to end it.\n</parameter>\n</function>

A tag inside a value ends the value only where a well-formed rest follows. The tags of an answer are the input of a
small automaton, whose states say which tags may come next. A tag with two meanings (the end of a value, or a part of
it) leads to two states. One walk backwards computes for every tag and state how well the rest can be parsed; one walk
forwards takes the first meaning with the best rest:

* every marker of a section begins a section, ends one, or is part of a value, preferably of a whole call that the value
  quotes;
* where the closing tag of a parameter was forgotten, the tag of the next parameter or the end of the call ends the
  value. The tag of a parameter does so only where the call has no such parameter yet and the tool's schema names it (or
  names none, and the tag stands where the format has it).

Both walks take as many steps as there are tags.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import TypeAlias

from turnkeeper.rendering.message import render_json
from turnkeeper.rendering.tool_calls.schema_types import ToolSchemas
from turnkeeper.rendering.tool_calls.tool_format import MarkedText, ParsedToolCall, TextOrCalls


class TagKind(StrEnum):
    """The kinds of tags."""

    SECTION_OPENING = "section_opening"
    SECTION_CLOSING = "section_closing"
    CALL_OPENING = "call_opening"
    CALL_CLOSING = "call_closing"
    PARAMETER_OPENING = "parameter_opening"
    PARAMETER_CLOSING = "parameter_closing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A tag in a text."""

    kind: TagKind
    start: int
    end: int
    name: str = ""
    """The name of the function or parameter that the tag begins; empty for other tags."""
    is_string: bool | None = None
    """True when the tag of a parameter says that the value is a string; None where tags do not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a call as the model spelled it."""

    tool: str
    name: str
    text: str
    is_string: bool | None
    """True when the tag says that the value is a string; None where tags do not tell."""


ConvertValue: TypeAlias = Callable[[Parameter, ToolSchemas], str | None]
"""Converts a parameter's text to the JSON of its value; gives None where the text cannot be a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagSyntax:
    """The tags of one format of tool calls."""

    pattern: re.Pattern[str]
    """Matches any tag but those of sections. Its groups are named for the kinds of tags; ``name`` and ``key`` hold the
    names of functions and parameters, ``string`` whether a value is a string."""
    convert: ConvertValue
    is_value_on_lines: bool = False
    """True when values stand on lines of their own, between line breaks that are not part of them."""
    is_tag_on_line: bool = True
    """True when the tag of a parameter begins a line."""
    is_call_closed: bool = True
    """True when calls have a closing tag; otherwise the closing tag of the section ends the call too."""


class _Place(IntEnum):
    """The states of the automaton: the places at which a tag may be found."""

    ANSWER = 0
    """The tag is outside of any section."""
    SECTION = 1
    """The tag is in a section, before its first call."""
    CALLS = 2
    """The tag is in a section, behind a call."""
    CALL = 3
    """The tag is in a call, between its parameters."""
    VALUE = 4
    """The tag is in a value."""
    QUOTED_CALL = 5
    """The tag is in a value, inside a section that is part of the value."""
    PAST_CLOSING = 6
    """The tag is in a value, behind a closing marker that is part of the value and has no opening marker before it."""


_Moves: TypeAlias = tuple[tuple[_Place, int], ...]

_STRAY = 2
"""The cost of a closing marker outside of any section."""
_CLOSING_IN_VALUE = 1
"""The cost of a closing marker inside a value. It is less than the cost of a value that ends too early, which leaves
the marker that ends the section outside of any section."""
_OPENING_PAST_CLOSING = 1
"""The cost of an opening marker behind such a closing marker. Both together cost as much as a malformed section, so
that no value extends over the end of its section into a malformed one."""
_CALL_PAST_CLOSING = 2
"""The cost of an opening marker behind such a closing marker where a call follows it."""
_FORGOTTEN = 2
"""The cost of a closing marker that ends a section and also a value which no other tag ends."""

_BETWEEN = frozenset({_Place.SECTION, _Place.CALLS, _Place.CALL})
"""The places where only white space may stand between two tags."""
_IN_VALUE = frozenset({_Place.VALUE, _Place.QUOTED_CALL, _Place.PAST_CLOSING})
_TEXT = _IN_VALUE | {_Place.ANSWER}
"""The places where a tag may be text."""

_MOVES: Mapping[tuple[_Place, TagKind], _Moves] = {
    (_Place.ANSWER, TagKind.SECTION_OPENING): ((_Place.SECTION, 0), (_Place.ANSWER, 0)),
    (_Place.ANSWER, TagKind.SECTION_CLOSING): ((_Place.ANSWER, _STRAY),),
    (_Place.SECTION, TagKind.CALL_OPENING): ((_Place.CALL, 0),),
    (_Place.CALLS, TagKind.CALL_OPENING): ((_Place.CALL, 0),),
    (_Place.CALLS, TagKind.SECTION_CLOSING): ((_Place.ANSWER, 0),),
    (_Place.CALL, TagKind.PARAMETER_OPENING): ((_Place.VALUE, 0),),
    (_Place.CALL, TagKind.CALL_CLOSING): ((_Place.CALLS, 0),),
    **{(place, TagKind.PARAMETER_CLOSING): ((_Place.CALL, 0), (place, 0)) for place in _IN_VALUE},
    **{(place, TagKind.CALL_CLOSING): ((_Place.CALLS, 0), (place, 0)) for place in _IN_VALUE},
    (_Place.VALUE, TagKind.SECTION_OPENING): ((_Place.QUOTED_CALL, 0),),
    (_Place.VALUE, TagKind.SECTION_CLOSING): ((_Place.PAST_CLOSING, _CLOSING_IN_VALUE),),
    (_Place.QUOTED_CALL, TagKind.SECTION_CLOSING): ((_Place.VALUE, 0),),
    (_Place.PAST_CLOSING, TagKind.SECTION_OPENING): ((_Place.QUOTED_CALL, _CALL_PAST_CLOSING),),
    (_Place.PAST_CLOSING, TagKind.SECTION_CLOSING): ((_Place.PAST_CLOSING, _CLOSING_IN_VALUE),),
}
"""The places to which each tag may lead and what they cost, the likelier meaning first. Any other tag is text, or makes
the section malformed."""
_MOVES_WITHOUT_CLOSING: Mapping[tuple[_Place, TagKind], _Moves] = {
    **_MOVES,
    (_Place.CALL, TagKind.SECTION_CLOSING): ((_Place.ANSWER, 0),),
    **{
        (place, TagKind.SECTION_CLOSING): ((_Place.ANSWER, _FORGOTTEN), (_Place.PAST_CLOSING, _CLOSING_IN_VALUE))
        for place in (_Place.VALUE, _Place.PAST_CLOSING)
    },
}
"""The moves in formats whose calls have no closing tag, so that the end of the section ends the call too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A section that was parsed."""

    calls: tuple[ParsedToolCall, ...]
    index: int
    """The index of the tag behind the section."""


@dataclass(slots=True)
class _OpenCall:
    """A call that is being parsed."""

    tool: str = ""
    values: dict[str, str] = field(default_factory=dict[str, str])
    """The JSON of the value of each parameter so far."""
    opening: Tag | None = None
    """The tag of the parameter that is being parsed."""

    def has(self, name: str) -> bool:
        """Return True when the call has a parameter of this name, the one that is being parsed included."""
        return name in self.values or (self.opening is not None and self.opening.name == name)


class TagParser:
    """Parses the end of one answer."""

    def __init__(self, tail: MarkedText, syntax: TagSyntax, schemas: ToolSchemas) -> None:
        """Find all tags, and how well the rest behind each can be parsed."""
        self._text = tail.text
        self._syntax = syntax
        self._schemas = schemas
        self._moves = _MOVES if syntax.is_call_closed else _MOVES_WITHOUT_CLOSING
        self._tags = list_tags(tail, syntax)
        starts = [0, *(tag.end for tag in self._tags)]
        gaps = zip(starts, self._tags, strict=False)
        self._is_adjacent = [not self._text[start : tag.start].strip() for start, tag in gaps]
        self._costs = self._measure()
        self._ends = self._find_ends()
        self._opened = self._find_opened()

    def parse(self) -> Iterator[TextOrCalls]:
        """Yield the texts and the sections in order."""
        position = index = 0
        while index < len(self._tags):
            tag = self._tags[index]
            is_section = tag.kind is TagKind.SECTION_OPENING and self._choose(index, _Place.ANSWER) is _Place.SECTION
            found = self._parse_section(index + 1) if is_section else None
            if found is None:
                index += 1
                continue
            yield self._text[position : tag.start]
            yield found.calls
            index = found.index
            position = self._tags[index - 1].end
        yield self._text[position:]

    def _list_moves(self, index: int, place: _Place) -> _Moves:
        kind = self._tags[index].kind
        if place in _BETWEEN and not self._is_adjacent[index]:
            return ()
        moves = self._moves.get((place, kind), ((place, 0),) if place in _TEXT else ())
        if place in _IN_VALUE and kind is TagKind.SECTION_OPENING and not self._begins_call(index):
            return ((_Place.VALUE, _OPENING_PAST_CLOSING if place is _Place.PAST_CLOSING else 0),)
        if place is _Place.QUOTED_CALL and kind is TagKind.SECTION_CLOSING and not self._ends_call(index):
            return ((place, _CLOSING_IN_VALUE),)
        return moves

    def _begins_call(self, index: int) -> bool:
        """Return True when the tag of a call follows an opening marker."""
        is_last = index + 1 == len(self._tags)
        return not is_last and self._is_adjacent[index + 1] and self._tags[index + 1].kind is TagKind.CALL_OPENING

    def _ends_call(self, index: int) -> bool:
        """Return True when a call ends right before a closing marker."""
        before = self._tags[index - 1].kind
        is_ended = before in (TagKind.PARAMETER_CLOSING, TagKind.CALL_OPENING)
        if self._syntax.is_call_closed:
            is_ended = before is TagKind.CALL_CLOSING
        return is_ended and self._is_adjacent[index]

    def _measure(self) -> list[list[float]]:
        """Compute, for each tag and for the end, the least cost of the rest from each place; infinite where the rest is
        malformed."""
        end = [0.0 if place is _Place.ANSWER else math.inf for place in _Place]
        costs = [end]
        for index in range(len(self._tags) - 1, -1, -1):
            behind = costs[-1]
            costs.append(
                [
                    min((cost + behind[to] for to, cost in self._list_moves(index, place)), default=math.inf)
                    for place in _Place
                ]
            )
        return costs[::-1]

    def _choose(self, index: int, place: _Place) -> _Place | None:
        """Return the place to which a tag leads, by the first of its meanings whose rest costs least; None where the
        rest is malformed."""
        best, least = None, math.inf
        for to, cost in self._list_moves(index, place):
            if cost + self._costs[index + 1][to] < least:
                best, least = to, cost + self._costs[index + 1][to]
        return best

    def _find_ends(self) -> list[int]:
        """Find, for each tag, the next tag that may end the call, the tag itself included."""
        ends: list[int] = []
        for index in range(len(self._tags) - 1, -1, -1):
            is_end = self._tags[index].kind in (TagKind.CALL_CLOSING, TagKind.SECTION_CLOSING)
            ends.append(index if is_end or not ends else ends[-1])
        return ends[::-1]

    def _find_opened(self) -> Mapping[str, Sequence[int]]:
        """Find, by name, the tags of parameters that stand right behind the closing tag of another parameter."""
        found: dict[str, list[int]] = {}
        for index, (before, tag) in enumerate(pairwise(self._tags), start=1):
            is_expected = before.kind is TagKind.PARAMETER_CLOSING and self._is_adjacent[index]
            if tag.kind is TagKind.PARAMETER_OPENING and is_expected:
                found.setdefault(tag.name, []).append(index)
        return found

    def _parse_section(self, index: int) -> _Found | None:
        """Parse the calls of a section; None where a text is no value of its parameter, or a parameter comes twice."""
        calls: list[ParsedToolCall] = []
        call = _OpenCall()
        place = _Place.SECTION
        while place is not _Place.ANSWER:
            tag = self._tags[index]
            following = self._parse_in_value(index, place, call) if place in _TEXT else self._choose(index, place)
            if tag.kind is TagKind.CALL_OPENING and place in _BETWEEN:
                call = _OpenCall(tool=tag.name)
            elif tag.kind is TagKind.PARAMETER_OPENING and place is _Place.CALL:
                following = None if tag.name in call.values else following
                call.opening = tag
            if following is None:
                return None
            if place > _Place.CALLS and following in (_Place.CALLS, _Place.ANSWER):
                calls.append(ParsedToolCall(name=call.tool, arguments=render_members(call.values)))
            place = following
            index += 1
        return _Found(calls=tuple(calls), index=index)

    def _parse_in_value(self, index: int, place: _Place, call: _OpenCall) -> _Place | None:
        """Return the place to which a tag inside a value leads; where it ends the value, add the value to the call."""
        tag = self._tags[index]
        following = self._choose(index, place)
        is_parameter = tag.kind is TagKind.PARAMETER_OPENING and self._begins_parameter(index, place, call)
        is_part = following in _IN_VALUE
        if (is_parameter or not is_part) and self._add_value(call, tag):
            if is_parameter:
                call.opening = tag
            return following
        if is_part:
            return following
        return place if self._costs[index + 1][place] < math.inf else None

    def _add_value(self, call: _OpenCall, sampled_end: Tag) -> bool:
        """Add the value that a tag ends to its call; return False where the text cannot be a value of the parameter."""
        assert call.opening is not None
        text = self._cut_value(call.opening.end, sampled_end)
        parameter = Parameter(tool=call.tool, name=call.opening.name, text=text, is_string=call.opening.is_string)
        converted = self._syntax.convert(parameter, self._schemas)
        if converted is not None:
            call.values[parameter.name] = converted
        return converted is not None

    def _begins_parameter(self, index: int, place: _Place, call: _OpenCall) -> bool:
        """Return True when the tag of a parameter inside a value ends the value, whose closing tag was forgotten."""
        name = self._tags[index].name
        if place is _Place.QUOTED_CALL or call.has(name) or self._is_opened_later(index, name):
            return False
        is_named = self._schemas.has_parameter(call.tool, name)
        if is_named is not None:
            return is_named
        assert call.opening is not None
        start = self._tags[index].start
        return not self._syntax.is_tag_on_line or start == call.opening.end or self._text[start - 1] == "\n"

    def _is_opened_later(self, index: int, name: str) -> bool:
        """Return True when the same parameter begins behind this tag, right behind the closing tag of another."""
        opened = self._opened.get(name, ())
        place = bisect_right(opened, index)
        return place < len(opened) and opened[place] < self._ends[index]

    def _cut_value(self, start: int, sampled_end: Tag) -> str:
        """Return the text of a value without the line breaks that the format has around it."""
        text = self._text[start : sampled_end.start]
        if self._syntax.is_value_on_lines:
            text = text.removeprefix("\n")
        is_forgotten = sampled_end.kind is not TagKind.PARAMETER_CLOSING
        is_line_ended = self._syntax.is_value_on_lines or (is_forgotten and self._syntax.is_tag_on_line)
        return text.removesuffix("\n") if is_line_ended else text


def list_tags(tail: MarkedText, syntax: TagSyntax) -> Sequence[Tag]:
    """List all tags of a text in order."""
    sections = [
        Tag(
            kind=TagKind.SECTION_OPENING if marker.is_opening else TagKind.SECTION_CLOSING,
            start=marker.start,
            end=marker.end,
        )
        for marker in tail.markers
    ]
    return sorted([*sections, *map(_parse_tag, syntax.pattern.finditer(tail.text))], key=lambda tag: tag.start)


def _parse_tag(match: re.Match[str]) -> Tag:
    groups = match.groupdict()
    kind = next(kind for kind in TagKind if groups.get(kind) is not None)
    string = groups.get("string")
    return Tag(
        kind=kind,
        start=match.start(),
        end=match.end(),
        name=groups.get("name") or groups.get("key") or "",
        is_string=None if string is None else string == "true",
    )


def render_members(converted: Mapping[str, str]) -> str:
    """Render a JSON object whose values are JSON texts already."""
    return "{" + ", ".join(f"{render_json(key)}: {value}" for key, value in converted.items()) + "}"
