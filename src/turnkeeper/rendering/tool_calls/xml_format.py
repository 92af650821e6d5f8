r"""The format of tool calls with a tag for each parameter, as several families have it.

::

    <tool_call>\n<function=look>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>
    <tool_call>look<arg_key>at</arg_key><arg_value>1</arg_value></tool_call>
    <minimax:tool_call>\n<invoke name="look">\n<parameter name="at">1</parameter>\n</invoke>\n</minimax:tool_call>

Strings are not quoted, so that ``1`` may be a number or a text, and the tool's schema decides. Where the schema allows
a string and other types, a text that is JSON of one of the others is taken as JSON, in its own spelling, and every
other text is a string. Where it says nothing, a text that is JSON is taken as JSON.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import TemplateError
from turnkeeper.jsontypes import is_object, parse_strict
from turnkeeper.rendering.message import ToolCall, render_json
from turnkeeper.rendering.tool_calls.schema_types import ToolSchemas, Types, name_type
from turnkeeper.rendering.tool_calls.tag_parser import Parameter, TagParser, TagSyntax
from turnkeeper.rendering.tool_calls.tool_format import MarkedText, TextOrCalls

_PYTHON_SPELLING = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlToolFormat:
    """A format as the texts around names and values, with a pattern that finds these texts."""

    opening: str
    closing: str
    call_opening: str
    """The text before the parameters; ``{name}`` stands for the name of the function."""
    call_closing: str
    """The text behind the parameters."""
    parameter_opening: str
    """The text before a value; ``{key}`` stands for the name of the parameter."""
    parameter_closing: str
    """The text behind a value."""
    pattern: re.Pattern[str]
    """Matches any of these tags; see ``TagSyntax``."""
    inner: str = ""
    """White space behind the opening marker."""
    before: str = ""
    between: str = ""
    after: str = ""
    """White space behind the last section."""
    is_python_spelled: bool = False
    """True when scalars are spelled as in Python (``True``, ``None``) instead of as JSON."""
    is_one_section: bool = False
    """True when all calls of a message share one section."""

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Render all calls of a message."""
        bodies = [self._render_call(call) for call in calls]
        sections = ["".join(bodies)] if self.is_one_section else bodies
        return self.between.join(f"{self.opening}{self.inner}{body}{self.closing}" for body in sections) + self.after

    def _render_call(self, call: ToolCall) -> str:
        arguments: Any = call.arguments
        if not is_object(arguments):
            raise TemplateError(
                f"the arguments of a call to {call.name!r} are not a JSON object, and the format has no other form for "
                "them",
                hint="send the arguments as the JSON text of an object",
            )
        parameters = (
            self.parameter_opening.replace("{key}", str(key)) + self._render_value(value) + self.parameter_closing
            for key, value in arguments.items()
        )
        return self.call_opening.replace("{name}", call.name) + "".join(parameters) + self.call_closing

    def _render_value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        is_scalar = not isinstance(value, dict | list)
        return str(value) if is_scalar and self.is_python_spelled else render_json(value)

    def parse(self, tail: MarkedText, schemas: ToolSchemas) -> Iterator[TextOrCalls]:
        """Yield the texts and the calls of each section in order."""
        syntax = TagSyntax(
            pattern=self.pattern,
            convert=self._convert,
            is_value_on_lines=self.parameter_opening.endswith("\n"),
            is_tag_on_line=self.parameter_closing.endswith("\n"),
            is_call_closed=bool(self.call_closing),
        )
        return TagParser(tail, syntax, schemas).parse()

    def _convert(self, parameter: Parameter, schemas: ToolSchemas) -> str:
        types = schemas.find_types(parameter.tool, parameter.name)
        return convert_value(parameter.text, types, is_python_spelled=self.is_python_spelled)


def convert_value(text: str, types: Types, *, is_python_spelled: bool = True) -> str:
    """Convert a parameter's text to JSON; a text that is taken as JSON keeps its own spelling.

    Args:
        text: the text as it was sampled.
        types: the types that the schema allows; None where it does not tell.
        is_python_spelled: True when ``None`` may stand for null where a string is allowed too.
    """
    stripped = text.strip()
    allows_string = types is None or "string" in types
    if types is not None and stripped in _PYTHON_SPELLING and (is_python_spelled or not allows_string):
        converted = _PYTHON_SPELLING[stripped]
        if not allows_string or name_type(json.loads(converted)) in types:
            return converted
    if types is None or not allows_string:
        return stripped if is_json(stripped) else render_json(text)
    others = types - {"string"}
    return stripped if others and is_json(stripped) and name_type(json.loads(stripped)) in others else render_json(text)


def is_json(text: str) -> bool:
    """Return True when a text is one JSON value by the strict grammar, without NaN and Infinity."""
    try:
        parse_strict(text)
    except (ValueError, RecursionError):
        return False
    return True


def build_function_format(*, before: str, after: str = "", is_python_spelled: bool) -> XmlToolFormat:
    """Build the format that Qwen3.5 and related models use."""
    return XmlToolFormat(
        opening="<tool_call>",
        closing="</tool_call>",
        inner="\n",
        call_opening="<function={name}>\n",
        call_closing="</function>\n",
        parameter_opening="<parameter={key}>\n",
        parameter_closing="\n</parameter>\n",
        pattern=re.compile(
            r"(?P<call_opening><function=(?P<name>[^<>\n]+)>)|(?P<call_closing></function>)|"
            r"(?P<parameter_opening><parameter=(?P<key>[^<>\n]+)>)|(?P<parameter_closing></parameter>)"
        ),
        before=before,
        between="\n",
        after=after,
        is_python_spelled=is_python_spelled,
    )
