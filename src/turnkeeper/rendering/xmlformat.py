r"""Tool calls spelled as tags, one a parameter, as several families have them.

::

    <tool_call>\n<function=look>\n<parameter=at>\n1\n</parameter>\n</function>\n</tool_call>
    <tool_call>look<arg_key>at</arg_key><arg_value>1</arg_value></tool_call>
    <minimax:tool_call>\n<invoke name="look">\n<parameter name="at">1</parameter>\n</invoke>\n</minimax:tool_call>

A string stands as it is, so that ``1`` may be a number or a text: the tool's schema decides, and where it says nothing,
what is JSON is taken as JSON, in its own spelling.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import TemplateError
from turnkeeper.jsontypes import is_object
from turnkeeper.rendering.message import ToolCall, write_json
from turnkeeper.rendering.toolformat import ParsedToolCall, Schemas

_PYTHON_SPELLING = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlToolFormat:
    """The spelling as texts around names and values, and as patterns that read them back."""

    opening: str
    closing: str
    call_opening: str
    """Before the parameters; ``{name}`` stands for the function's name."""
    call_closing: str
    """Behind the parameters."""
    parameter_opening: str
    """Before a value; ``{key}`` stands for the parameter's name."""
    parameter_closing: str
    """Behind a value."""
    call_pattern: re.Pattern[str]
    """Groups ``name`` and ``parameters``."""
    parameter_pattern: re.Pattern[str]
    """Groups ``key`` and ``value``."""
    inner: str = ""
    """Layout behind the opening marker."""
    before: str = ""
    between: str = ""
    after: str = ""
    """Layout behind the last section."""
    is_python_spelled: bool = False
    """Whether scalars are written as Python does (``True``, ``None``) instead of as JSON."""
    is_one_section: bool = False
    """Whether all calls of a message share one section."""

    def write(self, calls: Sequence[ToolCall]) -> str:
        """All calls of a message."""
        bodies = [self._write_call(call) for call in calls]
        sections = ["".join(bodies)] if self.is_one_section else bodies
        return self.between.join(f"{self.opening}{self.inner}{body}{self.closing}" for body in sections) + self.after

    def _write_call(self, call: ToolCall) -> str:
        arguments: Any = call.arguments
        if not is_object(arguments):
            raise TemplateError(
                f"the arguments of a call to {call.name!r} are no JSON object, and the format has no other way to "
                "write them",
                hint="send the arguments as the JSON text of an object",
            )
        parameters = (
            self.parameter_opening.replace("{key}", str(key)) + self._write_value(value) + self.parameter_closing
            for key, value in arguments.items()
        )
        return self.call_opening.replace("{name}", call.name) + "".join(parameters) + self.call_closing

    def _write_value(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        is_scalar = not isinstance(value, dict | list)
        return str(value) if is_scalar and self.is_python_spelled else write_json(value)

    def parse(self, section: str, schemas: Schemas) -> tuple[ParsedToolCall, ...] | None:
        """The calls of a section; None unless every character of it belongs to one."""
        calls: list[ParsedToolCall] = []
        position = 0
        while match := self.call_pattern.match(section, position):
            arguments = self._read_parameters(match["parameters"], schemas.get(match["name"], {}))
            if arguments is None:
                return None
            calls.append(ParsedToolCall(name=match["name"], arguments=arguments))
            position = match.end()
        return tuple(calls) if calls and not section[position:].strip() else None

    def _read_parameters(self, text: str, schemas: Mapping[str, Any]) -> str | None:
        spelled: dict[str, str] = {}
        position = 0
        while match := self.parameter_pattern.match(text, position):
            key = match["key"]
            if key in spelled:
                return None
            spelled[key] = spell_value(match["value"], schemas.get(key))
            position = match.end()
        return None if text[position:].strip() else write_members(spelled)


def write_members(spelled: Mapping[str, str]) -> str:
    """A JSON object out of values that are JSON already."""
    return "{" + ", ".join(f"{write_json(key)}: {value}" for key, value in spelled.items()) + "}"


def spell_value(text: str, schema: Any) -> str:
    """A parameter's text as JSON, in its own spelling where it is JSON."""
    wanted: Any = schema.get("type") if is_object(schema) else None
    if wanted == "string":
        return write_json(text)
    stripped = text.strip()
    if wanted is not None and stripped in _PYTHON_SPELLING:
        return _PYTHON_SPELLING[stripped]
    return stripped if is_json(stripped) else write_json(text)


def is_json(text: str) -> bool:
    """Whether a text is one JSON value, strictly."""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def build_function_format(*, before: str, after: str = "", is_python_spelled: bool) -> XmlToolFormat:
    """The spelling of Qwen3.5 and its relatives."""
    return XmlToolFormat(
        opening="<tool_call>",
        closing="</tool_call>",
        inner="\n",
        call_opening="<function={name}>\n",
        call_closing="</function>\n",
        parameter_opening="<parameter={key}>\n",
        parameter_closing="\n</parameter>\n",
        call_pattern=re.compile(r"\s*<function=(?P<name>[^>\n]+)>\n?(?P<parameters>.*?)</function>", re.DOTALL),
        parameter_pattern=re.compile(r"\s*<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL),
        before=before,
        between="\n",
        after=after,
        is_python_spelled=is_python_spelled,
    )
