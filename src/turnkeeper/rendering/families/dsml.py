"""DSML, the tags in which DeepSeek spells tool calls, and the parts that its two encoders share.

::

    <｜DSML｜invoke name="look">
    <｜DSML｜parameter name="at" string="false">1</｜DSML｜parameter>
    </｜DSML｜invoke>

The tag of each value tells whether the value is a string, so that types need not be derived from the tool's schema.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import TemplateError
from turnkeeper.jsontypes import is_object
from turnkeeper.rendering.family import Thinking
from turnkeeper.rendering.message import ToolCall, render_json
from turnkeeper.rendering.tool_calls import (
    MarkedText,
    Parameter,
    TagParser,
    TagSyntax,
    TextOrCalls,
    ToolSchemas,
    is_json,
)

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINKING = Thinking(after_opening="", before_closing="", after_closing="")
SWITCHES = ("thinking", "enable_thinking", "thinking_mode")
"""The names under which clients turn thinking on and off; the first is the name that engines know."""

_TAGS = re.compile(
    r'(?P<call_opening><｜DSML｜invoke name="(?P<name>[^"<>\n]*)">)|(?P<call_closing></｜DSML｜invoke>)|'
    r'(?P<parameter_opening><｜DSML｜parameter name="(?P<key>[^"<>\n]*)" string="(?P<string>true|false)">)|'
    r"(?P<parameter_closing></｜DSML｜parameter>)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DsmlToolFormat:
    """The format with all calls of a message in one block."""

    block: str
    """The name of the block: ``function_calls`` or ``tool_calls``."""
    before: str = "\n\n"
    between: str = ""

    @property
    def opening(self) -> str:
        """The tag that begins the block."""
        return f"<｜DSML｜{self.block}>"

    @property
    def closing(self) -> str:
        """The tag that ends the block."""
        return f"</｜DSML｜{self.block}>"

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Render all calls as one block."""
        return f"{self.opening}\n{''.join(f'{_render_call(call)}' for call in calls)}{self.closing}"

    def parse(self, tail: MarkedText, schemas: ToolSchemas) -> Iterator[TextOrCalls]:
        """Yield the texts and the calls of each block in order. A block with a value that is marked as JSON, and is
        not JSON, is text."""
        return TagParser(tail, TagSyntax(pattern=_TAGS, convert=_convert_value), schemas).parse()


def _convert_value(parameter: Parameter, schemas: ToolSchemas) -> str | None:
    if parameter.is_string:
        return render_json(parameter.text)
    return parameter.text if is_json(parameter.text) else None


def _render_call(call: ToolCall) -> str:
    arguments: Any = call.arguments
    if not is_object(arguments):
        raise TemplateError(
            f"the arguments of a call to {call.name!r} are not a JSON object, and DSML has no other form for them",
            hint="send the arguments as the JSON text of an object",
        )
    parameters = "\n".join(_render_parameter(str(key), value) for key, value in arguments.items())
    return f'<｜DSML｜invoke name="{call.name}">\n{parameters}\n</｜DSML｜invoke>\n'


def _render_parameter(key: str, value: Any) -> str:
    is_string = isinstance(value, str)
    text = value if is_string else render_json(value)
    return f'<｜DSML｜parameter name="{key}" string="{"true" if is_string else "false"}">{text}</｜DSML｜parameter>'


def is_thinking_on(chat_template_kwargs: Mapping[str, Any]) -> bool:
    """Return True when the effective ``chat_template_kwargs`` ask for thinking, which is the default."""
    return bool(chat_template_kwargs.get("thinking", True))


def refuse_effort(chat_template_kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that the encoders do not support, instead of ignoring them.

    Raises:
        TemplateError: the arguments ask for a reasoning effort or a response format.
    """
    for name in ("reasoning_effort", "response_format"):
        if chat_template_kwargs.get(name) is not None:
            raise TemplateError(
                f"the DeepSeek encoders here do not write {name}={chat_template_kwargs[name]!r}",
                hint=f"leave {name} out",
            )
