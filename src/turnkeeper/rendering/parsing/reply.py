"""Parsed replies: the values that parsers give, and the protocol of a parser."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from turnkeeper.core.tokens import TokenIds
from turnkeeper.rendering.tool_calls import ParsedToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDelta:
    """The text and tool calls that some ids added to a reply."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ParsedToolCall, ...] = ()
    """The calls that were completed."""

    def __bool__(self) -> bool:
        """Return True when the delta adds anything."""
        return bool(self.reasoning or self.content or self.tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A completion as a message."""

    reasoning: str | None
    """None where the completion has no thinking; an empty string where the thinking is empty."""
    content: str
    tool_calls: tuple[ParsedToolCall, ...]


class ReplyParser(Protocol):
    """Parses one completion, a chunk of ids at a time."""

    def feed(self, ids: Iterable[int]) -> ReplyDelta:
        """Return what these ids add to the reply."""
        ...

    def finish(self) -> ReplyDelta:
        """Return what was held back. Call it once, at the end of the completion."""
        ...

    @property
    def reply(self) -> ParsedReply:
        """The reply so far; after ``finish`` the whole reply."""
        ...


class ReplyBuffer:
    """Collects the text and the tool calls that a parser finds, and gives them as deltas and as a whole."""

    def __init__(self) -> None:
        """Begin an empty reply."""
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ParsedToolCall] = []
        self._taken = (0, 0, 0)
        self.has_reasoning = False

    def add_reasoning(self, text: str) -> None:
        """Add text to the reasoning; an empty text makes reasoning that is empty, instead of none."""
        self.has_reasoning = True
        if text:
            self._reasoning.append(text)

    def add_content(self, text: str) -> None:
        """Add text to the answer."""
        if text:
            self._content.append(text)

    def add_calls(self, calls: Iterable[ParsedToolCall]) -> None:
        """Add completed tool calls."""
        self._calls.extend(calls)

    def take(self) -> ReplyDelta:
        """Return what was added since the last call."""
        reasoning, content, calls = self._taken
        self._taken = (len(self._reasoning), len(self._content), len(self._calls))
        return ReplyDelta(
            reasoning="".join(self._reasoning[reasoning:]),
            content="".join(self._content[content:]),
            tool_calls=tuple(self._calls[calls:]),
        )

    @property
    def reply(self) -> ParsedReply:
        """The whole reply so far."""
        return ParsedReply(
            reasoning="".join(self._reasoning) if self.has_reasoning else None,
            content="".join(self._content),
            tool_calls=tuple(self._calls),
        )


def parse_completion(parser: ReplyParser, ids: TokenIds) -> ParsedReply:
    """Parse a whole completion with a parser that has not been used."""
    parser.feed(ids.tolist())
    parser.finish()
    return parser.reply
