r"""The comparison of stored ids with the canonical text of their messages, without tokenizing anything.

::

    text, cut at markers   <|im_start|> | user\nHi | <|im_end|> | \n | <|im_start|> | assistant\n{"a": 1} | <|im_end|>
    ids, cut and decoded   <|im_start|> | user\nHi | <|im_end|> | \n | <|im_start|> | assistant\n{"a":1}  | <|im_end|>
                                                                                     ^ assistant_text

A difference in the text of an assistant is expected: the model spelled something as no template would, which is why
ids are kept. Any other difference means that a prompt was not the one of the conversation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from turnkeeper.core.tokens import TokenIds
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.tokenization import Segment, Tokenizer
from turnkeeper.texts import count_common_prefix


class MismatchType(StrEnum):
    """The kind of a mismatch between ids and text."""

    SPECIAL_TOKEN_COUNT = "special_token_count"
    """The control tokens stand in other places, so that the texts between them cannot be paired."""
    SPECIAL_TOKEN_TYPE = "special_token_type"
    """There is another control token in the same place."""
    NON_ASSISTANT_TEXT = "non_assistant_text"
    """A text that is not the model's differs."""
    ASSISTANT_TEXT = "assistant_text"
    """A text of the model differs. This is harmless, and the reason why ids are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One mismatch between the ids of a path and the canonical text of its messages."""

    type: MismatchType
    segment_index: int
    """The position among the control tokens and the texts between them; -1 where they cannot be paired."""
    expected_text: str
    """The canonical text around the mismatch."""
    actual_text: str
    """The decoded ids around the mismatch."""
    detail: str = ""

    def to_json(self) -> JsonObject:
        """Return the mismatch as an entry of ``tito_session_mismatch``."""
        return {
            "type": self.type.value,
            "segment_index": self.segment_index,
            "expected_text": self.expected_text,
            "actual_text": self.actual_text,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparator:
    """Compares ids with canonical texts for one family on one tokenizer."""

    tokenizer: Tokenizer
    markers: Mapping[int, str]
    """The control tokens at which ids and texts are split, by id."""
    pattern: re.Pattern[str]
    """Matches any of the markers in a text."""
    tail: frozenset[str]
    """The segments that may end one side and not the other: stop tokens, and white space behind the last message."""
    spoken: tuple[str, ...]
    """The markers behind which the text is the model's, with the text that follows them where that decides."""

    def compare(self, expected: str, ids: TokenIds) -> tuple[Mismatch, ...]:
        """List every mismatch between a canonical text and stored ids.

        Args:
            expected: the conversation as the family renders it.
            ids: the ids of the path that holds the conversation.
        """
        wanted = self._drop_tail(self._cut_text(self.tokenizer.normalize(expected)))
        found = self._drop_tail(self._cut_ids(ids))
        structural = _compare_structure(wanted, found)
        if structural is not None:
            return (structural,)
        return tuple(
            self._describe(index, wanted, found)
            for index, (left, right) in enumerate(zip(wanted, found, strict=True))
            if left != right
        )

    def _cut_text(self, text: str) -> list[Segment]:
        segments: list[Segment] = []
        position = 0
        for match in self.pattern.finditer(text):
            if match.start() > position:
                segments.append(Segment(text=text[position : match.start()], is_marker=False))
            segments.append(Segment(text=match[0], is_marker=True))
            position = match.end()
        if position < len(text):
            segments.append(Segment(text=text[position:], is_marker=False))
        return segments

    def _cut_ids(self, ids: TokenIds) -> list[Segment]:
        wanted = np.fromiter(self.markers, dtype=np.int32, count=len(self.markers))
        places = np.flatnonzero(np.isin(ids, wanted)).tolist()
        segments: list[Segment] = []
        position = 0
        for place in [*places, len(ids)]:
            if place > position:
                segments.append(Segment(text=self.tokenizer.decode(ids[position:place]), is_marker=False))
            if place < len(ids):
                segments.append(Segment(text=self.markers[int(ids[place])], is_marker=True))
            position = place + 1
        return segments

    def _drop_tail(self, segments: list[Segment]) -> list[Segment]:
        end = len(segments)
        while end and segments[end - 1].text in self.tail:
            end -= 1
        return segments[:end]

    def _describe(self, index: int, wanted: Sequence[Segment], found: Sequence[Segment]) -> Mismatch:
        left, right = wanted[index], found[index]
        if left.is_marker:
            return Mismatch(
                type=MismatchType.SPECIAL_TOKEN_TYPE,
                segment_index=index,
                expected_text=left.text,
                actual_text=right.text,
            )
        is_said = self._is_assistant(wanted, index) and self._is_assistant(found, index)
        place = count_common_prefix(left.text, right.text)
        return Mismatch(
            type=MismatchType.ASSISTANT_TEXT if is_said else MismatchType.NON_ASSISTANT_TEXT,
            segment_index=index,
            expected_text=clip(left.text, place),
            actual_text=clip(right.text, place),
            detail=f"the texts differ from character {place} of {len(left.text)} on",
        )

    def _is_assistant(self, segments: Sequence[Segment], index: int) -> bool:
        if index == 0 or not segments[index - 1].is_marker:
            return False
        return (segments[index - 1].text + segments[index].text).startswith(self.spoken)


def _compare_structure(wanted: Sequence[Segment], found: Sequence[Segment]) -> Mismatch | None:
    """Find the first segment that has no counterpart; None where markers and texts pair throughout."""
    if [segment.is_marker for segment in wanted] == [segment.is_marker for segment in found]:
        return None
    pairs = enumerate(zip(wanted, found, strict=False))
    place = next(
        (
            index
            for index, (left, right) in pairs
            if left.is_marker != right.is_marker or (left.is_marker and left != right)
        ),
        min(len(wanted), len(found)),
    )
    return Mismatch(
        type=MismatchType.SPECIAL_TOKEN_COUNT,
        segment_index=-1,
        expected_text=_show(wanted, place),
        actual_text=_show(found, place),
        detail=f"{len(wanted)} segments expected, {len(found)} found; the first that do not pair are number {place}",
    )


def _show(segments: Sequence[Segment], place: int) -> str:
    """Show the segments around a position."""
    return "".join(clip(segment.text, 0) for segment in segments[max(0, place - 2) : place + 3])


_WINDOW = 400
"""The number of characters that are shown on each side of a mismatch."""


def clip(text: str, place: int) -> str:
    """Return the text around a position, with an ellipsis where it was cut."""
    start, stop = max(0, place - _WINDOW), place + _WINDOW
    return f"{'…' if start else ''}{text[start:stop]}{'…' if stop < len(text) else ''}"


def build_comparator(
    tokenizer: Tokenizer, family: Family, *, stops: Sequence[str], turn_end: str, reply_marker: str
) -> Comparator:
    """Build the comparator of a family on a tokenizer.

    Args:
        tokenizer: the tokenizer of the checkpoint.
        family: the family, which names the markers to split at.
        stops: the texts of the stop tokens.
        turn_end: the text that ends an assistant message.
        reply_marker: the text that begins an assistant message.
    """
    inner = frozenset(family.list_inner_markers()) - {*family.delimiters}
    markers = {
        token: text
        for token, text in tokenizer.markers.items()
        if text in family.delimiters or (tokenizer.is_special(token) and text not in inner)
    }
    longest_first = sorted(markers.values(), key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(text) for text in longest_first) or r"(?!)")
    first = pattern.match(turn_end)
    layout = turn_end[first.end() :] if first else turn_end
    spoken = tuple(text for text in (reply_marker, *family.spoken_markers) if text)
    tail = frozenset(text for text in (*stops, first[0] if first else "", layout) if text)
    return Comparator(tokenizer=tokenizer, markers=markers, pattern=pattern, tail=tail, spoken=spoken)
