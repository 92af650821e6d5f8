"""Completions as messages: parsers for tagged replies and for replies in blocks."""

from turnkeeper.rendering.parsing.blocks import BlockParser
from turnkeeper.rendering.parsing.reply import ParsedReply, ReplyDelta, ReplyParser, parse_completion
from turnkeeper.rendering.parsing.tagged import TaggedParser

__all__ = ["BlockParser", "ParsedReply", "ReplyDelta", "ReplyParser", "TaggedParser", "parse_completion"]
