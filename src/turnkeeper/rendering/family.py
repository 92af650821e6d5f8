"""What is special to a model family's chat format, as data.

A family is one frozen row; the renderer, the parsers, the comparison and ``turnkeeper verify`` read it. Code enters
a row in two places only: the rule that writes history where the checkpoint's template would prune it, and the format
of tool calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.placement import IN_PLACE, Placement
from turnkeeper.rendering.tool_calls import Section, ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How reasoning stands before an answer."""

    opening: str = "<think>"
    """The marker that begins it."""
    closing: str = "</think>"
    """The marker that ends it."""
    after_opening: str = "\n"
    """Layout between the opening marker and the reasoning."""
    before_closing: str = "\n"
    """Layout between the reasoning and the closing marker."""
    after_closing: str = "\n\n"
    """Layout between the closing marker and the answer."""
    is_layout_dropped: bool = False
    """Whether ``after_closing`` is left out where no answer follows."""

    @property
    def end(self) -> str:
        """What closes reasoning that was cut, no answer behind it."""
        return f"{self.before_closing}{self.closing}{'' if self.is_layout_dropped else self.after_closing}"

    def render(self, reasoning: str) -> str:
        """Reasoning between its markers, an answer to follow."""
        return f"{self.opening}{self.after_opening}{reasoning}{self.before_closing}{self.closing}{self.after_closing}"


class BlockKind(StrEnum):
    """What a block's body is."""

    REASONING = "reasoning"
    """Thinking."""
    CONTENT = "content"
    """The answer, or a preamble to calls."""
    CALL = "call"
    """The arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """A header, read."""

    kind: BlockKind
    name: str = ""
    """The function that a call names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """The markers of a block format, and how its headers and calls are read."""

    starts: tuple[str, ...]
    """Markers that begin a header."""
    bodies: tuple[str, ...]
    """Markers that end a header and begin a body."""
    ends: tuple[str, ...]
    """Markers that end a block."""
    inner: tuple[str, ...]
    """Markers that stand in headers."""
    parse_header: Callable[[str], BlockHeader]
    """A header's text, markers included, up to and with the body's marker."""
    parse_call: Callable[[str, str, int], Section | None]
    """The call of a header's name, a text and the place where the body begins; None when it is not well-formed."""


class HistoryFormat(Protocol):
    """Writes messages behind the head. Stateless; the same input gives the same text."""

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """The text of messages in place.

        Args:
            messages: the messages to write; a run of tool results is whole.
            earlier: what stands before them, read only to resolve the calls that tool results answer.
            arguments: the effective template arguments.
        """
        ...


class MessageEncoder(HistoryFormat, Protocol):
    """Writes whole conversations, for checkpoints that come without a chat template."""

    def render_head(
        self, head: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Everything before the first message that is no system message: BOS, system texts, tools.

        Args:
            head: the leading system messages.
            tools: function tools.
            arguments: the effective template arguments.
        """
        ...

    def render_generation_prompt(self, last: Message | None, chat_template_kwargs: Mapping[str, Any]) -> str:
        """What opens the assistant's message behind a message; the beginning of the conversation is None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table."""

    name: str
    """What ``--tito-model`` calls it."""
    models: str
    """The models it serves, for people."""
    source: str
    """Where the facts of this row come from."""
    turn_end: str | None
    """The text behind an assistant's message. Its first token is sampled, the rest is not. Empty where the next
    message's marker does the closing; None where it is read off the checkpoint's template."""
    stop_markers: tuple[str, ...] = ()
    """The tokens a sampled message may end with."""
    replaced_markers: tuple[str, ...] = ()
    """Those of them that give way to another marker when the conversation goes on: there one token is trimmed."""
    final_markers: tuple[str, ...] = ()
    """Those of them that close a message by themselves, though they are not the usual close."""
    reply_marker: str | None = None
    """The text that opens an assistant's message; None where nobody knows it."""
    inner_markers: tuple[str, ...] = ()
    """Special tokens that stand inside a message, so that they do not delimit one in the comparison."""
    delimiters: tuple[str, ...] = ()
    """Markers that delimit in the comparison though the tokenizer does not flag them, or though they stand inside."""
    spoken_markers: tuple[str, ...] = ()
    """Markers besides ``reply_marker`` behind which the model speaks."""
    placement: Placement | None = IN_PLACE
    """Where system and developer messages are written; None where that, and every role, is tried on the template."""
    pinned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Template arguments that keep earlier messages as they are; a request may not contradict them."""
    thinking_switches: tuple[str, ...] = ()
    """Names of one argument that turns thinking on and off; the first is the one that is kept, on by default."""
    thinking: Thinking | None = None
    """The reasoning markers; None where the format has none, or nobody knows."""
    blocks: Thinking | None = None
    """Blocks that every text of a message stands in, so that a cut one is ended before the close; None where only
    thinking is such a block."""
    tools: ToolFormat | None = None
    """How tool calls are spelled; None where nobody knows."""
    block_format: BlockFormat | None = None
    """How replies are read where they are rows of blocks; None where they are tagged text."""
    is_template_followed: bool = True
    """Whether the rule writes what the checkpoint's template writes, so long as that drops nothing."""
    history_format: HistoryFormat | None = None
    """Writes what follows the first assistant message; None where the checkpoint's template does."""
    message_encoder: MessageEncoder | None = None
    """Writes everything, where the checkpoint has no template."""

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The markers before and behind reasoning; None where the format has none, or nobody knows."""
        return (self.thinking.opening, self.thinking.closing) if self.thinking else None

    def list_inner_markers(self) -> tuple[str, ...]:
        """Every marker that stands inside messages: the named ones, and those of thinking and tool calls."""
        thinking = self.thinking_tags or ()
        tools = (self.tools.opening, self.tools.closing) if self.tools else ()
        return (*self.inner_markers, *thinking, *tools)

    @property
    def max_trim(self) -> int:
        """How many trailing ids of a parent a child may leave out: 0 or 1."""
        return 1 if self.replaced_markers else 0
