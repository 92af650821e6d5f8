"""The checkpoint's chat template, rendered as ``apply_chat_template`` of Hugging Face renders it.

The sandbox, its block trimming and its helpers (``tojson``, ``raise_exception``, ``strftime_now``, loop controls,
the ``generation`` tag) are the same, so that the text is the same. There are two differences: a template may grow and
shrink its own lists, as Kimi's do; and the present time comes from the caller.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from turnkeeper.errors import ConfigError, TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.message import nest_tool, normalize_message, render_json

FormatTime = Callable[[str], str]
"""Formats the present time by a strftime pattern."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """The immutable sandbox, except that lists may grow and shrink, since some templates keep a queue in one."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in ("append", "pop")) or super().is_safe_attribute(obj, attr, value)


class _GenerationTag(Extension):
    """The tag ``{% generation %}``, which marks the text of an assistant; here its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> str:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return render_json(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _build_sandbox() -> _Sandbox:
    """Build the environment in which one template is rendered; a template is compiled to the same code in each."""
    sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    sandbox.filters["tojson"] = _to_json
    return sandbox


@lru_cache(maxsize=256)
def _compile(source: str) -> CodeType:
    """Compile a template, which takes longer than most renderings of it, once for all renderers that are built with it.

    Raises:
        jinja2.TemplateError: the source is not a Jinja template.
    """
    return _build_sandbox().compile(source)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, named_tokens: Mapping[str, str], format_time: FormatTime | None = None) -> None:
        """Compile a template.

        Args:
            source: the Jinja text.
            named_tokens: the texts that the template knows as ``bos_token``, ``eos_token`` and so on.
            format_time: the function behind ``strftime_now``; with None a template that asks for the date fails.

        Raises:
            ConfigError: the source is not a Jinja template.
        """
        sandbox = _build_sandbox()
        helpers: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": format_time or _refuse_time}
        sandbox.globals.update(helpers)
        self._named_tokens = dict(named_tokens)
        self.source = source
        try:
            code = _compile(source)
        except jinja2.TemplateError as error:
            raise ConfigError(
                f"the chat template is not valid Jinja: {error}", hint="--chat-template-path names another one"
            ) from error
        self._compiled = sandbox.template_class.from_code(sandbox, code, sandbox.make_globals(None))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject] = (),
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool,
    ) -> str:
        """Render a conversation.

        Args:
            messages: the messages in chat-completions form; the template gets copies with tool arguments as objects.
            tools: the function tools; the template gets None where there are none.
            chat_template_kwargs: the arguments that the template gets besides.
            add_generation_prompt: True for a text that ends with the beginning of the assistant's next message.

        Raises:
            TemplateError: the template refuses the messages, or fails on them.
        """
        arguments = {**self._named_tokens, **(chat_template_kwargs or {})}
        arguments["add_generation_prompt"] = add_generation_prompt
        nested = [nest_tool(tool) for tool in tools]
        try:
            return self._fill(messages, nested, arguments)
        except Exception as error:  # a template is foreign code: whatever it raises is its refusal
            described = [_describe_tool(tool) for tool in nested]
            if described != nested:
                try:
                    return self._fill(messages, described, arguments)
                except Exception:
                    pass
            roles = ", ".join(str(message.get("role")) for message in messages[-4:])
            raise TemplateError(
                f"the chat template refuses the messages (the last ones: {roles}): {error}",
                hint="`turnkeeper verify` shows which appends the template holds",
            ) from error

    def _fill(self, messages: Sequence[Message], tools: list[JsonObject], arguments: Mapping[str, Any]) -> str:
        return self._compiled.render(
            {**arguments, "messages": [normalize_message(message) for message in messages], "tools": tools or None}
        )


def _describe_tool(tool: JsonObject) -> JsonObject:
    """Give a tool without a description an empty one: no API asks for one, and some templates (gpt-oss') do."""
    function: JsonObject = tool["function"]
    return tool if function.get("description") is not None else {**tool, "function": {**function, "description": ""}}


def _refuse_time(pattern: str) -> str:
    raise jinja2.TemplateError(f"the template asks for the date ({pattern}), and none was given")
