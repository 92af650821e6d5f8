"""Formats in which a reply is a row of blocks: the markers, and how headers and calls are read, as data."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.rendering.toolformat import Section


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
    read_header: Callable[[str], BlockHeader]
    """A header's text, markers included, up to and with the body's marker."""
    read_call: Callable[[str, str, int], Section | None]
    """The call of a header's name, a text and the place where the body begins; None when it is not well-formed."""
