"""Messages to tokens and tokens to messages: pure, synchronous, one checkpoint and one family at a time."""

from turnkeeper.rendering.checkpoint import Checkpoint
from turnkeeper.rendering.comparison import Mismatch, MismatchType
from turnkeeper.rendering.families import FAMILIES, get_family
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.junction import ParentContext
from turnkeeper.rendering.parsing import ParsedReply, ReplyDelta, ReplyParser, parse_completion
from turnkeeper.rendering.placement import Role
from turnkeeper.rendering.renderer import Renderer, build_renderer
from turnkeeper.rendering.tokenizer import Tokenizer
from turnkeeper.rendering.toolformat import ParsedToolCall

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
    "Tokenizer",
    "build_renderer",
    "get_family",
    "parse_completion",
]
