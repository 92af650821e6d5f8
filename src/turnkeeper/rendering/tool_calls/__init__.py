"""Formats of tool calls, which render and parse them, and the JSON types that tool schemas allow."""

from turnkeeper.rendering.tool_calls.schema_types import ToolSchemas
from turnkeeper.rendering.tool_calls.tag_parser import Parameter, TagParser, TagSyntax
from turnkeeper.rendering.tool_calls.tool_format import (
    JsonToolFormat,
    MarkedText,
    Marker,
    ParsedToolCall,
    Section,
    TextOrCalls,
    ToolFormat,
    parse_sections,
    scan_object,
    skip_space,
)
from turnkeeper.rendering.tool_calls.xml_format import XmlToolFormat, build_function_format, is_json

__all__ = [
    "JsonToolFormat",
    "MarkedText",
    "Marker",
    "Parameter",
    "ParsedToolCall",
    "Section",
    "TagParser",
    "TagSyntax",
    "TextOrCalls",
    "ToolFormat",
    "ToolSchemas",
    "XmlToolFormat",
    "build_function_format",
    "is_json",
    "parse_sections",
    "scan_object",
    "skip_space",
]
