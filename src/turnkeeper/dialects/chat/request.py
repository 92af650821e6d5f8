"""The messages and tools of chat completions, which are the canonical form themselves: they are checked, not changed.

What is malformed is refused by the path of its field (``messages[3].content[0].type``). The arguments of a tool call
stay the string that the client sent.
"""

import json
from collections.abc import Mapping
from typing import Any

from turnkeeper.dialects.conversation import get_messages, order_results
from turnkeeper.dialects.images import IMAGE_HINT, IMAGE_TYPES, ImageFilter
from turnkeeper.dialects.jsonbody import describe_json
from turnkeeper.dialects.members import get_object
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, Message, is_array, is_object

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Every role is kept as it was sent; the renderer finds a place for ``developer`` where the format knows none."""


def parse_messages(value: Any, images: ImageFilter) -> tuple[Message, ...]:
    """Parse a ``messages`` list.

    Args:
        value: the list.
        images: says what becomes of images in what users say and tools give.

    Raises:
        RequestError: not a list, empty, or a message is malformed.
    """
    items = get_messages(value)
    return order_results(parse_message(item, f"messages[{index}]", images) for index, item in enumerate(items))


def parse_message(value: Any, where: str, images: ImageFilter) -> Message:
    """Parse one message; ``where`` is its path in error messages."""
    message = get_object(value, where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}", param=f"{where}.role")
    if images.omits and role in ("user", "tool"):
        message = _replace_images(message, images)
    _check_content(message.get("content"), where)
    for name in ("reasoning_content", "reasoning", "name", "tool_call_id"):
        _check_text(message, name, where)
    if message.get("function_call") is not None:
        raise RequestError(f"{where}.function_call is not served; send tool_calls", param=f"{where}.function_call")
    calls = message.get("tool_calls")
    if not calls:
        return message
    if role != "assistant":
        raise RequestError(f"{where}.tool_calls belongs to an assistant message, not to {role}", param=where)
    return {**message, "tool_calls": _parse_tool_calls(calls, f"{where}.tool_calls")}


def parse_tools(value: Any) -> tuple[JsonObject, ...]:
    """Parse a ``tools`` list; null and a missing list are no tools.

    Raises:
        RequestError: not a list, or an entry that is no function with a name.
    """
    if value is None:
        return ()
    if not is_array(value):
        raise RequestError(f"tools must be a list, got {describe_json(value)}", param="tools")
    return tuple(_parse_tool(item, f"tools[{index}]") for index, item in enumerate(value))


def _parse_tool(value: Any, where: str) -> JsonObject:
    tool = get_object(value, where)
    if tool.get("type") != "function":
        raise RequestError(f"{where}.type must be function, got {tool.get('type')!r}", param=f"{where}.type")
    function = get_object(tool.get("function"), f"{where}.function")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestError(f"{where}.function.name must be a string that is not empty", param=f"{where}.function.name")
    return tool


def _parse_tool_calls(value: Any, where: str) -> list[JsonObject]:
    if not is_array(value):
        raise RequestError(f"{where} must be a list, got {describe_json(value)}", param=where)
    return [_parse_tool_call(item, f"{where}[{index}]") for index, item in enumerate(value)]


def _parse_tool_call(value: Any, where: str) -> JsonObject:
    call = get_object(value, where)
    _check_text(call, "id", where)
    function = get_object(call.get("function"), f"{where}.function")
    if not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function.name must be a string", param=f"{where}.function.name")
    arguments = function.get("arguments")
    if is_object(arguments):
        # Some clients send the object where the protocol has its text; both mean the same call.
        return {**call, "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}}
    if arguments is not None and not isinstance(arguments, str):
        raise RequestError(
            f"{where}.function.arguments must be a string of JSON, got {describe_json(arguments)}", param=where
        )
    return call


def _replace_images(message: JsonObject, images: ImageFilter) -> JsonObject:
    """Put a text part in the place of each image that is left out."""
    content = message.get("content")
    if not is_array(content):
        return message
    texts = [images.find_placeholder(part) if is_object(part) else None for part in content]
    if not any(texts):
        return message
    parts = [
        part if text is None else {"type": "text", "text": text} for part, text in zip(content, texts, strict=True)
    ]
    return {**message, "content": parts}


def _check_content(value: Any, where: str) -> None:
    """Check the content of the message at ``where``, whose path is spelled only where it is needed: a conversation has
    hundreds of messages, and nearly all are sound."""
    if value is None or isinstance(value, str):
        return
    where = f"{where}.content"
    if not is_array(value):
        raise RequestError(
            f"{where} must be a string, a list of text parts or null, got {describe_json(value)}", param=where
        )
    for index, part in enumerate(value):
        _check_part(part, f"{where}[{index}]")


def _check_part(value: Any, where: str) -> None:
    part: Mapping[str, Any] = get_object(value, where)
    if part.get("type") != "text":
        raise RequestError(
            f"{where}.type must be text, got {part.get('type')!r}: sessions hold text only",
            hint=IMAGE_HINT if part.get("type") in IMAGE_TYPES else "",
            param=f"{where}.type",
        )
    if not isinstance(part.get("text"), str):
        raise RequestError(
            f"{where}.text must be a string, got {describe_json(part.get('text'))}", param=f"{where}.text"
        )


def _check_text(holder: JsonObject, name: str, where: str) -> None:
    value = holder.get(name)
    if value is not None and not isinstance(value, str):
        where = f"{where}.{name}"
        raise RequestError(f"{where} must be a string or null, got {describe_json(value)}", param=where)
