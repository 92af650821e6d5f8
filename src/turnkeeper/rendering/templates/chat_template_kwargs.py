"""The effective ``chat_template_kwargs``, merged from those of the server, the family and the request.

A family pins the arguments that keep earlier messages as they are. A request may repeat a pinned value and may add
other arguments. It may not contradict a pinned value, and it may not change an argument along a path where the change
would alter how the messages of the path are rendered.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnkeeper.errors import ConfigError, RequestError, TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.templates.text_renderer import TextRenderer

_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template")

_CALL = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
_EXAMPLE: Sequence[Message] = (
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [_CALL]},
    {"role": "tool", "content": "t", "tool_call_id": "call00000", "name": "look"},
    {"role": "assistant", "content": "b", "reasoning_content": "q"},
    {"role": "user", "content": "v"},
)
"""A conversation with a message of every kind that an argument may affect."""
_PLAIN_EXAMPLE: Sequence[Message] = (
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "b", "reasoning_content": "q"},
    {"role": "user", "content": "v"},
)
"""A conversation for templates that know neither system messages nor tools."""


def merge_server_kwargs(family: Family, given: Mapping[str, Any] | None) -> JsonObject:
    """Merge the server's arguments with those that the family pins.

    Raises:
        ConfigError: an argument contradicts a pinned one, or is a name that only the renderer sets.
    """
    merged = dict(given or {})
    for name, value in family.pinned.items():
        if name in merged and merged[name] != value:
            raise ConfigError(
                f"the template argument {name}={merged[name]!r} contradicts --tito-model {family.name}, "
                f"which pins {name}={value!r}",
                hint=f"leave {name} out",
            )
        merged[name] = value
    for name in _RESERVED:
        if name in merged:
            raise ConfigError(f"{name!r} cannot be set as a chat template argument", hint=f"leave {name} out")
    return merged


def merge_request_kwargs(family: Family, fixed: Mapping[str, Any], given: Mapping[str, Any]) -> JsonObject:
    """Merge a request's arguments with those of the server and the family.

    Raises:
        RequestError: an argument contradicts a pinned one, or is a name that only the renderer sets.
    """
    for name, value in given.items():
        if name in _RESERVED:
            raise RequestError(f"chat_template_kwargs may not set {name!r}", hint=f"leave {name} out", param=name)
        if name in family.pinned and family.pinned[name] != value:
            raise RequestError(
                f"chat_template_kwargs sets {name}={value!r}, but the model family {family.name} needs "
                f"{name}={family.pinned[name]!r} to keep earlier turns as they were sampled",
                hint=f"leave {name} out",
                param=name,
            )
    return _merge_switches(family, {**fixed, **given}, given)


def _merge_switches(family: Family, merged: JsonObject, given: Mapping[str, Any]) -> JsonObject:
    """Replace the names under which clients turn thinking on and off by the first of them.

    A value of the request comes before one of the server. Thinking is on where neither says anything.
    """
    if not family.thinking_switches:
        return merged
    kept = family.thinking_switches[0]
    named = [name for source in (given, merged) for name in family.thinking_switches if name in source]
    value: Any = merged[named[0]] if named else True
    for name in family.thinking_switches:
        merged.pop(name, None)
    return {**merged, kept: value not in (False, "chat")}


def _renders_otherwise(text_renderer: TextRenderer, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return True when two sets of arguments render the same history to different texts, or cannot be compared."""
    for probe in (_EXAMPLE, _PLAIN_EXAMPLE):
        try:
            old = text_renderer.render(probe, (), before, add_generation_prompt=False)
            return text_renderer.render(probe, (), after, add_generation_prompt=False) != old
        except TemplateError:
            continue
    return True


def check_kwargs_change(text_renderer: TextRenderer, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse a change of arguments along a path that would alter how the messages of the path are rendered.

    Raises:
        RequestError: the change would alter them.
    """
    if before != after and _renders_otherwise(text_renderer, before, after):
        names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        raise RequestError(
            f"chat_template_kwargs changes {', '.join(names)} in the middle of a session, "
            "which would change how its earlier messages are written",
            hint="send the values of the first request, or start another session",
            param="chat_template_kwargs",
        )
