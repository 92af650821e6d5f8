"""Messages to tokens and tokens to messages, for one checkpoint and one model family at a time.

Everything here is synchronous and deterministic: files, clocks and sockets belong to those who call it.
"""

from turnkeeper.rendering.boundary import ParentContext
from turnkeeper.rendering.checkpoint import Checkpoint
from turnkeeper.rendering.comparison import Mismatch, MismatchType
from turnkeeper.rendering.families import FAMILIES, get_family
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.parsing import ParsedReply, ReplyDelta, ReplyParser, parse_completion
from turnkeeper.rendering.placement import Role
from turnkeeper.rendering.renderer import Renderer, build_renderer
from turnkeeper.rendering.tokenization import TextTooLongError, Tokenizer
from turnkeeper.rendering.tool_calls import ParsedToolCall

__all__ = [
    "FAMILIES",
    "Checkpoint",
    "Family",
    "Mismatch",
    "MismatchType",
    "ParentContext",
    "ParsedReply",
    "ParsedToolCall",
    "Renderer",
    "ReplyDelta",
    "ReplyParser",
    "Role",
    "TextTooLongError",
    "Tokenizer",
    "build_renderer",
    "get_family",
    "parse_completion",
]
