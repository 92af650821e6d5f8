"""What is special to a model family's chat format, as data.

A family is one frozen row; the renderer, the parsers, the comparison and ``turnkeeper verify`` read it. Code enters
a row in two places only: the rule that writes history where the checkpoint's template would prune it, and the format
of tool calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.rendering.blockformat import BlockFormat
from turnkeeper.rendering.placement import IN_PLACE, Placement
from turnkeeper.rendering.rule import Encoder, HistoryRule
from turnkeeper.rendering.toolformat import ToolFormat


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

    def write(self, reasoning: str) -> str:
        """Reasoning between its markers, an answer to follow."""
        return f"{self.opening}{self.after_opening}{reasoning}{self.before_closing}{self.closing}{self.after_closing}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One row of the table."""

    name: str
    """What ``--tito-model`` calls it."""
    models: str
    """The models it serves, for people."""
    source: str
    """Where the facts of this row come from."""
    close: str | None
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
    rule: HistoryRule | None = None
    """Writes what follows the first assistant message; None where the checkpoint's template does."""
    encoder: Encoder | None = None
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
