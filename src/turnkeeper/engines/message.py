"""Assistant messages in canonical form, from what engines send.

Pure. Canonical means: ``role``, ``content`` as a string, ``reasoning_content`` and ``tool_calls`` only where there are
some, arguments in the spelling that came.
"""

from typing import cast

import orjson

from turnkeeper.engines.reply import expect_object
from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import JsonObject


def canonicalise_message(message: JsonObject, url: str) -> JsonObject:
    """Content as a string, absent members left out, tool calls without the engine's ``index``."""
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise EngineProtocolError(
            f"the reply of {url} has a {type(content).__name__} as content, expected text", url=url
        )
    known = {"role", "content", "reasoning_content", "reasoning", "tool_calls"}
    result: JsonObject = {"role": "assistant", "content": content or ""}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        result["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        result["tool_calls"] = [_canonicalise_call(call, url) for call in cast(list[object], calls)]
    return result | {key: value for key, value in message.items() if key not in known and value is not None}


def _canonicalise_call(call: object, url: str) -> JsonObject:
    entry = expect_object(call, "tool_calls[]", url)
    function = expect_object(entry.get("function"), "tool_calls[].function", url)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some engines answer the object itself
        arguments = orjson.dumps({} if arguments is None else arguments).decode()
    return {
        "id": str(entry.get("id") or ""),
        "type": "function",
        "function": {"name": str(function.get("name") or ""), "arguments": arguments},
    }
