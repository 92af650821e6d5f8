r"""The turn boundary: where the ids of a path end and the text of appended messages begins.

A sampled message ends in one of four ways. In each the prompt that goes on contains the turn end exactly once::

    ... <|im_end|>         + "\n<|im_start|>user..."          the turn end was sampled: add what is never sampled
    ... <|im_end|>\n       + "<|im_start|>user..."            the engine went on behind the stop: nothing is left to add
    ... <|user|>           + "<|user|>..."                    the stop token opens the next message: not repeated, or,
                                                              where another marker takes its place, trimmed
    ... cut in the middle  + "\n</think>\n\n<|im_end|>\n..."  nothing ended it: end the thinking, then the turn
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
    """The part of a path that an appended prompt depends on: the last turn of the path."""

    messages: Sequence[Message]
    """The messages of the path, with the message of the last completion at the end. Only the last ones are used."""
    completion_ids: TokenIds
    """The completion ids of the last turn."""
    prompt_ids: TokenIds = field(default_factory=lambda: NO_TOKENS)
    """The prompt ids that the last turn appended; their end shows whether the prompt opened thinking."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """The effective ``chat_template_kwargs`` of the last turn; None where a change of them is not to be checked."""

    @property
    def last_id(self) -> int | None:
        """The last token id of the path; None for an empty path."""
        ids: Any = self.completion_ids if len(self.completion_ids) else self.prompt_ids
        return int(ids[-1]) if len(ids) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedIds:
    """The ids that a turn appends to the path of its parent, behind all but the last ``trim`` ids of that path."""

    trim: int
    ids: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledEnd:
    """A part of the turn end that a model may have sampled, and the text that is then left to add."""

    ids: tuple[int, ...]
    """The ids of the sampled part; empty where the turn end has no control token, so that ``text`` decides."""
    text: str
    rest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBoundary:
    """The turn boundary of one family on one tokenizer."""

    tokenizer: Tokenizer
    turn_end: str
    """The text that ends an assistant message."""
    sampled_ends: tuple[SampledEnd, ...]
    """The parts of the turn end that may have been sampled, the longest first."""
    stop_ids: frozenset[int]
    """Every token with which a sampled message may end."""
    replaced_ids: frozenset[int]
    """The stop tokens that another marker replaces when the conversation goes on."""
    final_ids: frozenset[int]
    """The stop tokens that end a message by themselves."""
    block: Thinking | None
    """The markers of the block (thinking, for most families) that a message which was cut short has to end before the
    turn end; None where the format has no such block."""
    reply_marker: str
    """The text that begins an assistant message; empty where it is not known."""

    def join(self, parent: ParentContext, suffix: str, room: int | None = None) -> AppendedIds:
        """Return the ids that append a suffix to a path.

        Args:
            parent: the last turn of the path.
            suffix: the text of the appended messages and of the generation prompt.
            room: the number of ids that may be added; None for any number.
        """
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
        """Find the part of the turn end with which a completion ends."""
        for sampled_end in self.sampled_ends:
            if sampled_end.ids and tuple(ids[-len(sampled_end.ids) :].tolist()) == sampled_end.ids:
                return sampled_end
            if not sampled_end.ids and self.tokenizer.decode(ids[-_TURN_END_SIZE:]).endswith(sampled_end.text):
                return sampled_end
        return None

    def _has_whole_turn_end(self, ids: TokenIds) -> bool:
        """Return True when a completion ends with the whole turn end, the part that models never sample included."""
        tail: list[int] = ids[-_TURN_END_SIZE:].tolist()
        for sampled_end in self.sampled_ends:
            if sampled_end.ids and sampled_end.rest and sampled_end.ids[-1] in tail:
                place = len(tail) - tail[::-1].index(sampled_end.ids[-1])
                said = tuple(tail[place - len(sampled_end.ids) : place]) == sampled_end.ids
                return said and self.tokenizer.decode(freeze_ids(tail[place:])) == sampled_end.rest
        return False

    def render_turn_end(self, parent: ParentContext) -> str:
        """Render what a message that was cut short lacks: the end of its block, then the turn end."""
        if self.block is None or not self.is_inside(self.block, parent):
            return self.turn_end
        end = self.block.end
        layout = self.block.before_closing
        if layout and self.tokenizer.decode(parent.completion_ids[-8:]).endswith(layout):
            end = end.removeprefix(layout)
        return end + self.turn_end

    def is_inside(self, block: Thinking, parent: ParentContext) -> bool:
        """Return True when a path ends inside a block that its last turn, or the prompt of that turn, began."""
        opening = self.tokenizer.decode(parent.prompt_ids[-_OPENING_SIZE:])
        if self.reply_marker:
            opening = opening.rpartition(self.reply_marker)[2]
        text = opening + self.tokenizer.decode(parent.completion_ids)
        return text.rfind(block.opening) > text.rfind(block.closing)


_OPENING_SIZE = 32
"""More ids than any generation prompt has."""
_TURN_END_SIZE = 16
"""More ids than any turn end has."""


def find_sampled_ends(tokenizer: Tokenizer, turn_end: str) -> tuple[SampledEnd, ...]:
    """List the parts of a turn end that may have been sampled: up to each of its control tokens; where it has none, its
    text without the white space at the end."""
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
    return (parts[0], last, *parts[1:])  # the last control token also ends a turn alone, as behind a tool call


def _find_ids(tokenizer: Tokenizer, markers: Sequence[str]) -> frozenset[int]:
    found = (tokenizer.find_id(marker) for marker in markers)
    return frozenset(marker for marker in found if marker is not None)


def build_turn_boundary(
    family: Family,
    tokenizer: Tokenizer,
    *,
    turn_end: str,
    generation_prompt: str,
    end_ids: Sequence[int],
    call_end: str = "",
) -> TurnBoundary:
    """Build the turn boundary of a family on a tokenizer.

    Args:
        family: the row of the family.
        tokenizer: the tokenizer of the checkpoint.
        turn_end: the turn end of the row, or the one found out from the template.
        generation_prompt: how the template begins an assistant message, for families whose row does not say.
        call_end: how the template ends a message with a tool call, for families whose row does not say.
        end_ids: the ids that end a generation according to the checkpoint.
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
        reply_marker=family.reply_marker or generation_prompt,
    )
