"""A completion as a message: the values that parsers give out, and the protocol of a parser."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from turnkeeper.core.tokens import TokenIds
from turnkeeper.rendering.tool_calls import ParsedToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDelta:
    """What some more ids added to a reply."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ParsedToolCall, ...] = ()
    """Calls that became whole."""

    def __bool__(self) -> bool:
        """Whether it adds anything."""
        return bool(self.reasoning or self.content or self.tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A completion as a message."""

    reasoning: str | None
    """None when the completion has no thinking; empty when its thinking is empty."""
    content: str
    tool_calls: tuple[ParsedToolCall, ...]


class ReplyParser(Protocol):
    """Reads one completion, a chunk of ids at a time."""

    def feed(self, ids: Iterable[int]) -> ReplyDelta:
        """What these ids complete."""
        ...

    def finish(self) -> ReplyDelta:
        """What is left at the end of the completion. Call it once."""
        ...

    @property
    def reply(self) -> ParsedReply:
        """Everything so far as one message; whole after ``finish``."""
        ...


class ReplyBuffer:
    """Collects what a parser gives out, as deltas and as the whole."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ParsedToolCall] = []
        self._taken = (0, 0, 0)
        self.has_reasoning = False

    def add_reasoning(self, text: str) -> None:
        """Thinking goes on."""
        self.has_reasoning = True
        if text:
            self._reasoning.append(text)

    def add_content(self, text: str) -> None:
        """The answer goes on."""
        if text:
            self._content.append(text)

    def add_calls(self, calls: Iterable[ParsedToolCall]) -> None:
        """Calls became whole."""
        self._calls.extend(calls)

    def take(self) -> ReplyDelta:
        """What came since the last time."""
        reasoning, content, calls = self._taken
        self._taken = (len(self._reasoning), len(self._content), len(self._calls))
        return ReplyDelta(
            reasoning="".join(self._reasoning[reasoning:]),
            content="".join(self._content[content:]),
            tool_calls=tuple(self._calls[calls:]),
        )

    @property
    def reply(self) -> ParsedReply:
        """The whole."""
        return ParsedReply(
            reasoning="".join(self._reasoning) if self.has_reasoning else None,
            content="".join(self._content),
            tool_calls=tuple(self._calls),
        )


def parse_completion(parser: ReplyParser, ids: TokenIds) -> ParsedReply:
    """A whole completion as a message, with a fresh parser."""
    parser.feed(ids.tolist())
    parser.finish()
    return parser.reply
