r"""Where a path and the messages after it meet.

A sampled message ends in one of four ways, and each is joined so that the prompt closes it exactly once::

    ... <|im_end|>         + "\n<|im_start|>user..."          the close was sampled: add what the model never samples
    ... <|im_end|>\n       + "<|im_start|>user..."            the engine went on behind the stop: nothing is left to add
    ... <|user|>           + "<|user|>..."                    the stop token opens the next message: not repeated, or,
                                                              where another marker takes its place, trimmed
    ... cut in the middle  + "\n</think>\n\n<|im_end|>\n..."  nothing closed it: end the thinking, then the message
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.core.tokens import NO_TOKENS, TokenIds, freeze_ids
from turnkeeper.jsontypes import Message
from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.tokenization import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentContext:
    """What an append needs to know of the path it extends: no more than its last turn."""

    messages: Sequence[Message]
    """The messages of the path, its last completion's message at the end. Only the end is read."""
    completion_ids: TokenIds
    """The last turn's completion."""
    prompt_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    """The last turn's appended prompt ids: their end says whether the prompt opened thinking."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """The effective template arguments of the last turn; None leaves a change of arguments unchecked."""

    @property
    def last_id(self) -> int | None:
        """The last id of the path."""
        ids: Any = self.completion_ids if len(self.completion_ids) else self.prompt_ids
        return int(ids[-1]) if len(ids) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedIds:
    """The join: the parent's path less ``trim``, then ``ids``."""

    trim: int
    ids: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEnd:
    """A part of the close that a model samples, and what is left to add."""

    ids: tuple[int, ...]
    """The sampled part; empty where the close has no control token, so that its text decides."""
    text: str
    rest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBoundary:
    """A family's boundary on one tokenizer."""

    tokenizer: Tokenizer
    turn_end: str
    """The text behind an assistant's message."""
    sampled_ends: tuple[SampledEnd, ...]
    """How much of it may have been sampled, the most first."""
    stop_ids: frozenset[int]
    """Every token that a sampled message may end with."""
    replaced_ids: frozenset[int]
    """Those that give way to another marker when the conversation goes on."""
    final_ids: frozenset[int]
    """Those that close a message by themselves."""
    block: Thinking | None
    """What a cut message ends before its close: thinking, or whatever block it stands in."""
    reply_marker: str
    """The text that opens an assistant's message; empty where nobody knows it."""

    def join(self, parent: ParentContext, suffix: str, room: int | None = None) -> AppendedIds:
        """Put a suffix behind a path; ``room`` is how many ids are of use."""
        last = parent.last_id
        sampled_end = self._find_sampled_end(parent.completion_ids)
        if last is not None and sampled_end is not None:
            return AppendedIds(trim=0, ids=self.tokenizer.encode_after(last, sampled_end.rest + suffix, room))
        if last is not None and (last in self.final_ids or self._has_whole_turn_end(parent.completion_ids)):
            return AppendedIds(trim=0, ids=self.tokenizer.encode_after(last, suffix, room))
        if last is None or last not in self.stop_ids:
            return AppendedIds(trim=0, ids=self.tokenizer.encode(self.render_turn_end(parent) + suffix, room))
        ids = self.tokenizer.encode(self.turn_end + suffix, None if room is None else room + 1)
        if len(ids) and ids[0] == last:
            return AppendedIds(trim=0, ids=ids[1:])
        return AppendedIds(trim=1 if last in self.replaced_ids else 0, ids=ids)

    def _find_sampled_end(self, ids: TokenIds) -> SampledEnd | None:
        """The part of the close that a completion ends with."""
        for sampled_end in self.sampled_ends:
            if sampled_end.ids and tuple(ids[-len(sampled_end.ids) :].tolist()) == sampled_end.ids:
                return sampled_end
            if not sampled_end.ids and self.tokenizer.decode(ids[-_TURN_END_SIZE:]).endswith(sampled_end.text):
                return sampled_end
        return None

    def _has_whole_turn_end(self, ids: TokenIds) -> bool:
        """Whether a completion ends with what is left to add behind an ending too."""
        tail: list[int] = ids[-_TURN_END_SIZE:].tolist()
        for sampled_end in self.sampled_ends:
            if sampled_end.ids and sampled_end.rest and sampled_end.ids[-1] in tail:
                place = len(tail) - tail[::-1].index(sampled_end.ids[-1])
                said = tuple(tail[place - len(sampled_end.ids) : place]) == sampled_end.ids
                return said and self.tokenizer.decode(freeze_ids(tail[place:])) == sampled_end.rest
        return False

    def render_turn_end(self, parent: ParentContext) -> str:
        """What a message that nothing closed still lacks."""
        if self.block is None or not self.is_inside(self.block, parent):
            return self.turn_end
        end = self.block.end
        layout = self.block.before_closing
        if layout and self.tokenizer.decode(parent.completion_ids[-8:]).endswith(layout):
            end = end.removeprefix(layout)
        return end + self.turn_end

    def is_inside(self, block: Thinking, parent: ParentContext) -> bool:
        """Whether the path ends inside a block that its last turn, or the opening of that turn, began."""
        opening = self.tokenizer.decode(parent.prompt_ids[-_OPENING_SIZE:])
        if self.reply_marker:
            opening = opening.rpartition(self.reply_marker)[2]
        text = opening + self.tokenizer.decode(parent.completion_ids)
        return text.rfind(block.opening) > text.rfind(block.closing)


_OPENING_SIZE = 32
"""More ids than any opening of an assistant's message has."""
_TURN_END_SIZE = 16
"""More ids than any close has."""


def find_sampled_ends(tokenizer: Tokenizer, turn_end: str) -> tuple[SampledEnd, ...]:
    """How much of a close may have been sampled: up to any of its control tokens, or all that can be seen of it."""
    ids = tokenizer.encode(turn_end)
    ends = [index + 1 for index, token in enumerate(ids.tolist()) if token in tokenizer.markers]
    if not ends:
        visible = turn_end.rstrip()
        return (SampledEnd(ids=(), text=visible, rest=turn_end[len(visible) :]),) if visible else ()
    texts = {end: tokenizer.decode(ids[:end]) for end in ends}
    parts = [
        SampledEnd(ids=tuple(ids[:end].tolist()), text=texts[end], rest=turn_end[len(texts[end]) :])
        for end in reversed(ends)
    ]
    last = SampledEnd(ids=parts[0].ids[-1:], text=tokenizer.markers[parts[0].ids[-1]], rest=parts[0].rest)
    return (parts[0], last, *parts[1:])  # the last control token closes alone too, as behind a tool call


def _find_ids(tokenizer: Tokenizer, markers: Sequence[str]) -> frozenset[int]:
    found = (tokenizer.find_id(marker) for marker in markers)
    return frozenset(marker for marker in found if marker is not None)


def build_turn_boundary(
    family: Family, tokenizer: Tokenizer, *, turn_end: str, opening: str, end_ids: Sequence[int], call_end: str = ""
) -> TurnBoundary:
    """A family's boundary on a tokenizer.

    Args:
        family: the row.
        tokenizer: the checkpoint's.
        close: the row's close, or what was read off the template.
        opening: how the template opens an assistant's message, for families whose row does not say.
        call_end: how the template ends a message with a tool call, for families whose row does not say.
        end_ids: the ids that the checkpoint says end a generation.
    """
    sampled_ends = find_sampled_ends(tokenizer, turn_end)
    stops = {*_find_ids(tokenizer, family.stop_markers), *end_ids}
    finals = set(_find_ids(tokenizer, family.final_markers))
    if family.turn_end is None:
        stops |= set(sampled_ends[0].ids[-1:]) if sampled_ends else set()
        finals |= set(tokenizer.encode(call_end.rstrip()).tolist()[-1:]) & tokenizer.special_ids
        finals -= set(sampled_ends[0].ids if sampled_ends else ())
    return TurnBoundary(
        tokenizer=tokenizer,
        turn_end=turn_end,
        sampled_ends=sampled_ends,
        stop_ids=frozenset(stops | finals),
        replaced_ids=_find_ids(tokenizer, family.replaced_markers),
        final_ids=frozenset(finals),
        block=family.blocks or family.thinking,
        reply_marker=family.reply_marker or opening,
    )
