"""The chat format of a model family, as data.

A family is one frozen row of the table in ``families``. The renderer, the parsers, the comparison and
``turnkeeper verify`` follow the row. Code enters a row in three places: the format of tool calls, the format of
history where the checkpoint's template would drop earlier thinking, and the encoder of a family without a template.
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
    """The markers around reasoning, and the white space that belongs to the format."""

    opening: str = "<think>"
    """The marker before the reasoning."""
    closing: str = "</think>"
    """The marker behind the reasoning."""
    after_opening: str = "\n"
    """White space between the opening marker and the reasoning."""
    before_closing: str = "\n"
    """White space between the reasoning and the closing marker."""
    after_closing: str = "\n\n"
    """White space between the closing marker and the answer."""
    is_layout_dropped: bool = False
    """True when ``after_closing`` is left out where no answer follows."""

    @property
    def end(self) -> str:
        """The text that ends reasoning which was cut short and has no answer behind it."""
        return f"{self.before_closing}{self.closing}{'' if self.is_layout_dropped else self.after_closing}"

    def render(self, reasoning: str) -> str:
        """Render reasoning between its markers, for an answer that follows."""
        return f"{self.opening}{self.after_opening}{reasoning}{self.before_closing}{self.closing}{self.after_closing}"


class BlockKind(StrEnum):
    """The content of a block."""

    REASONING = "reasoning"
    """The block holds reasoning."""
    CONTENT = "content"
    """The block holds the answer, or a text before tool calls."""
    CALL = "call"
    """The block holds the arguments of a tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """The parsed header of a block."""

    kind: BlockKind
    name: str = ""
    """The function that a block of kind CALL calls; empty for other kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFormat:
    """A format in which a reply is a sequence of blocks: the markers, and the parsers of headers and calls."""

    starts: tuple[str, ...]
    """The markers that begin a header."""
    bodies: tuple[str, ...]
    """The markers that end a header and begin the content."""
    ends: tuple[str, ...]
    """The markers that end a block."""
    inner: tuple[str, ...]
    """The markers inside headers."""
    parse_header: Callable[[str], BlockHeader]
    """Parses the text of a header, markers included, up to and including the marker that begins the content."""
    parse_call: Callable[[str, str, int], Section | None]
    """Parses a call from the function's name, a text, and the place in it where the arguments begin; gives None where
    the call is not well-formed."""


class HistoryFormat(Protocol):
    """Renders the messages behind the head of a conversation, for a family whose template drops earlier thinking.

    The checkpoint's template renders the head, which is everything before the first assistant message. The rest is
    rendered here with its thinking, so that the text behind a sampled turn is what the model would see in place.
    """

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages as they stand in the conversation.

        Args:
            messages: the messages to render; neighbouring tool results are all among them.
            earlier: the messages before them, needed only to find the calls that tool results answer.
            chat_template_kwargs: the effective arguments for the chat template.
        """
        ...


class MessageEncoder(HistoryFormat, Protocol):
    """Renders whole conversations, for checkpoints that come without a chat template."""

    def render_head(
        self, head: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render BOS, tools and the leading system messages.

        Args:
            head: the leading system messages.
            tools: the function tools of the request.
            chat_template_kwargs: the effective arguments for the chat template.
        """
        ...

    def render_generation_prompt(self, last: Message | None, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the beginning of an assistant message that follows ``last``; None stands for the beginning of the
        conversation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table of families."""

    name: str
    """The name that ``--tito-model`` takes."""
    models: str
    """The models that have this format, as the documentation names them."""
    source: str
    """The publications from which the facts of this row were taken."""
    turn_end: str | None
    """The text that ends an assistant message. The model samples its first token and none of the rest. Empty where the
    marker of the next message ends the message; None where the text is found out from the checkpoint's template."""
    stop_markers: tuple[str, ...] = ()
    """The tokens with which a sampled message may end."""
    replaced_markers: tuple[str, ...] = ()
    """The stop markers that another marker replaces when the conversation goes on; the child's prompt then leaves out
    one token of the parent's path."""
    final_markers: tuple[str, ...] = ()
    """The stop markers that end a message by themselves, though they are not the usual turn end."""
    reply_marker: str | None = None
    """The text that begins an assistant message; None where it is not known."""
    inner_markers: tuple[str, ...] = ()
    """The special tokens inside messages, at which the comparison does not split."""
    delimiters: tuple[str, ...] = ()
    """The markers at which the comparison splits although the tokenizer does not flag them as special, or although
    they stand inside messages."""
    spoken_markers: tuple[str, ...] = ()
    """The markers besides ``reply_marker`` behind which the text is the model's."""
    placement: Placement | None = IN_PLACE
    """Where the format has system and developer messages; None where this, and which roles can be appended, is found
    out by rendering small conversations."""
    pinned: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The chat template arguments that keep earlier messages as they are; a request may not contradict them."""
    thinking_switches: tuple[str, ...] = ()
    """The names of the one argument that turns thinking on and off. The first name is the one that templates are given;
    thinking is on by default."""
    thinking: Thinking | None = None
    """The markers of reasoning; None where the format has none, or they are not known."""
    blocks: Thinking | None = None
    """The markers of the blocks that hold every text of a message, so that a block which was cut short is ended before
    the turn end; None where thinking is the only such block."""
    tools: ToolFormat | None = None
    """The format of tool calls; None where it is not known."""
    block_format: BlockFormat | None = None
    """The format of replies that are sequences of blocks; None where replies are text with tags."""
    is_template_followed: bool = True
    """True when ``history_format`` gives the text of the checkpoint's template wherever the template drops nothing."""
    history_format: HistoryFormat | None = None
    """Renders everything from the first assistant message on; None where the checkpoint's template does."""
    message_encoder: MessageEncoder | None = None
    """Renders everything, for a checkpoint without a template; None where a template is needed."""

    @property
    def thinking_tags(self) -> tuple[str, str] | None:
        """The markers before and behind reasoning; None where the format has none, or they are not known."""
        return (self.thinking.opening, self.thinking.closing) if self.thinking else None

    def list_inner_markers(self) -> tuple[str, ...]:
        """List every marker that stands inside messages, those of thinking and tool calls included."""
        thinking = self.thinking_tags or ()
        tools = (self.tools.opening, self.tools.closing) if self.tools else ()
        return (*self.inner_markers, *thinking, *tools)

    @property
    def max_trim(self) -> int:
        """The most trailing ids of a parent's path that a child's prompt may leave out: 0 or 1."""
        return 1 if self.replaced_markers else 0
