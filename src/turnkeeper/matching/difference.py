"""The differences between two messages, field by field; a matcher accepts or refuses each kind of difference."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from turnkeeper.jsontypes import JsonObject
from turnkeeper.matching.arguments import are_arguments_equal
from turnkeeper.matching.normal import NormalCall, NormalMessage
from turnkeeper.texts import count_common_prefix

EXCERPT_CHARS = 120
"""The number of characters of a value that a record keeps, around the first one that differs."""


class DifferenceKind(StrEnum):
    """The kinds of differences between a stored and a replayed message."""

    ROLE = "role"
    """The role is another one."""
    CONTENT = "content"
    """The text, or a part that is not text, is another one."""
    CONTENT_TRIMMED = "content_trimmed"
    """The text was left out, or trimmed at its ends."""
    REASONING_TRIMMED = "reasoning_trimmed"
    """The reasoning was left out, or trimmed at its ends."""
    REASONING_IN_CONTENT = "reasoning_in_content"
    """The reasoning of a reply stands in the content, between the family's thinking tags."""
    REASONING = "reasoning"
    """The reasoning is another one."""
    CALLS = "calls"
    """There are more or fewer tool calls, or a call of another function."""
    ARGUMENTS_SPELLING = "arguments_spelling"
    """Tool arguments are the same JSON object in another spelling."""
    ARGUMENTS = "arguments"
    """Tool arguments have another value."""
    CALL_ID = "call_id"
    """A tool call, or the call that a result answers, has another id."""
    CALL_LINK = "call_link"
    """A call id stands for another id than it did earlier on the path."""
    OTHER_FORM = "other_form"
    """A reply that is known by its call ids came back in another form than the first request that continued it had."""
    OTHER = "other"
    """A matcher given by import path refused the message, and no field differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which a replayed message differs from the stored one."""

    kind: DifferenceKind
    field: str
    """Where: ``content``, ``reasoning``, ``tool_calls[1].arguments``, ..."""
    stored: str
    """An excerpt of the stored value, around the first character that differs."""
    replayed: str
    """An excerpt of the replayed value, from the place at which ``stored`` is cut."""
    index: int = -1
    """The index of the message in the request; -1 while it is not set."""

    def at(self, index: int) -> "Difference":
        """Return this difference, placed at a message of the request."""
        return replace(self, index=index)

    def describe(self) -> str:
        """Describe the difference in one line for people."""
        return f"message {self.index}, {self.field}: stored {self.stored!r}, replayed {self.replayed!r}"

    def to_json(self) -> JsonObject:
        """Return the difference ready for JSON."""
        return {
            "message": self.index,
            "field": self.field,
            "kind": str(self.kind),
            "stored": self.stored,
            "replayed": self.replayed,
        }


def differ(kind: DifferenceKind, field: str, stored: str, replayed: str) -> Difference:
    """Describe a difference between two values, which are cut to what a record keeps."""
    start = max(0, count_common_prefix(stored, replayed) - EXCERPT_CHARS // 4)
    return Difference(kind=kind, field=field, stored=_cut(stored, start), replayed=_cut(replayed, start))


def list_differences(stored: NormalMessage, replayed: NormalMessage) -> tuple[Difference, ...]:
    """List the fields in which two messages differ, in reading order; none for equal messages."""
    return () if replayed.equals(stored) else stored.recall(_find_differences, replayed)


def _find_differences(stored: NormalMessage, replayed: NormalMessage) -> tuple[Difference, ...]:
    return tuple(_walk_fields(stored, replayed))


def _walk_fields(stored: NormalMessage, replayed: NormalMessage) -> Iterator[Difference]:
    if stored.role != replayed.role:
        yield differ(DifferenceKind.ROLE, "role", stored.role, replayed.role)
    if stored.content != replayed.content:
        is_trimmed = _is_trimmed(stored.content, replayed.content)
        kind = DifferenceKind.CONTENT_TRIMMED if is_trimmed else DifferenceKind.CONTENT
        yield differ(kind, "content", stored.content, replayed.content)
    if stored.media != replayed.media:
        yield differ(DifferenceKind.CONTENT, "content", "".join(stored.media), "".join(replayed.media))
    if stored.reasoning != replayed.reasoning:
        is_trimmed = _is_trimmed(stored.reasoning, replayed.reasoning)
        kind = DifferenceKind.REASONING_TRIMMED if is_trimmed else DifferenceKind.REASONING
        yield differ(kind, "reasoning", stored.reasoning, replayed.reasoning)
    if stored.calls != replayed.calls:
        yield from _find_call_differences(stored.calls, replayed.calls)
    if stored.result_of != replayed.result_of:
        yield differ(DifferenceKind.CALL_ID, "tool_call_id", stored.result_of, replayed.result_of)


def _is_trimmed(stored: str, replayed: str) -> bool:
    kept = replayed.strip()
    return not kept or kept == stored.strip()


def _find_call_differences(stored: tuple[NormalCall, ...], replayed: tuple[NormalCall, ...]) -> Iterator[Difference]:
    if len(stored) != len(replayed):
        yield differ(DifferenceKind.CALLS, "tool_calls", _name_calls(stored), _name_calls(replayed))
        return
    for position, (left, right) in enumerate(zip(stored, replayed, strict=True)):
        place = f"tool_calls[{position}]"
        if left.name != right.name:
            yield differ(DifferenceKind.CALLS, f"{place}.name", left.name, right.name)
        if left.arguments != right.arguments:
            is_equal = are_arguments_equal(left.arguments, right.arguments)
            kind = DifferenceKind.ARGUMENTS_SPELLING if is_equal else DifferenceKind.ARGUMENTS
            yield differ(kind, f"{place}.arguments", left.arguments, right.arguments)
        if left.id != right.id:
            yield differ(DifferenceKind.CALL_ID, f"{place}.id", left.id, right.id)


def _name_calls(calls: tuple[NormalCall, ...]) -> str:
    return ", ".join(call.name for call in calls) or "none"


def _cut(text: str, start: int) -> str:
    if len(text) <= EXCERPT_CHARS:
        return text
    head, tail = ("…" if start else ""), ("…" if start + EXCERPT_CHARS < len(text) else "")
    return f"{head}{text[start : start + EXCERPT_CHARS]}{tail}"
