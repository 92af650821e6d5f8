"""In what two messages differ, field by field, each difference of a kind that a matcher accepts or refuses."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from turnkeeper.jsontypes import JsonObject
from turnkeeper.matching.arguments import are_arguments_equal
from turnkeeper.matching.normal import NormalCall, NormalMessage
from turnkeeper.texts import count_common_prefix

EXCERPT_CHARS = 120
"""How much of a value a record keeps, around the first character that differs."""


class DifferenceKind(StrEnum):
    """What a difference amounts to."""

    ROLE = "role"
    """Another speaker."""
    CONTENT = "content"
    """Other text, or other parts that are not text."""
    CONTENT_TRIMMED = "content_trimmed"
    """Text left out, or trimmed at its ends."""
    REASONING_TRIMMED = "reasoning_trimmed"
    """Reasoning left out, or trimmed at its ends."""
    REASONING_IN_CONTENT = "reasoning_in_content"
    """A reply's reasoning that stands before its text, between the family's thinking tags."""
    REASONING = "reasoning"
    """Reasoning that says something else."""
    CALLS = "calls"
    """More or fewer tool calls, or a call of another function."""
    ARGUMENTS_SPELLING = "arguments_spelling"
    """Tool arguments that are the same JSON object in another spelling."""
    ARGUMENTS = "arguments"
    """Tool arguments of another value."""
    CALL_ID = "call_id"
    """A tool call, or the call that a result answers, goes by another id."""
    CALL_LINK = "call_link"
    """An id that stands for another id than it did earlier on the path."""
    OTHER_FORM = "other_form"
    """A reply, known by its call ids, in another form than the first request that went on from it brought."""
    OTHER = "other"
    """What a matcher given by import path refuses and no field explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which a replayed message is not spelled as the stored one."""

    kind: DifferenceKind
    field: str
    """Where: ``content``, ``reasoning``, ``tool_calls[1].arguments``, ..."""
    stored: str
    """An excerpt of the stored value, around the first character that differs."""
    replayed: str
    """An excerpt of the replayed value, from the place at which ``stored`` is cut."""
    index: int = -1
    """Which message of the request; -1 while nobody has said."""

    def at(self, index: int) -> "Difference":
        """This difference, placed at a message of the request."""
        return replace(self, index=index)

    def describe(self) -> str:
        """One line for a person."""
        return f"message {self.index}, {self.field}: stored {self.stored!r}, replayed {self.replayed!r}"

    def to_json(self) -> JsonObject:
        """The same, JSON-ready."""
        return {
            "message": self.index,
            "field": self.field,
            "kind": str(self.kind),
            "stored": self.stored,
            "replayed": self.replayed,
        }


def differ(kind: DifferenceKind, field: str, stored: str, replayed: str) -> Difference:
    """A difference between two values, which are cut to what a record keeps."""
    start = max(0, count_common_prefix(stored, replayed) - EXCERPT_CHARS // 4)
    return Difference(kind=kind, field=field, stored=_cut(stored, start), replayed=_cut(replayed, start))


def list_differences(stored: NormalMessage, replayed: NormalMessage) -> tuple[Difference, ...]:
    """Every field in which the two differ, in reading order; nothing for equal messages."""
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
