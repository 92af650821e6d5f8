"""Assistant messages in canonical form, made of an engine's message or of its ids.

Pure. Canonical means: ``role``, ``content`` as a string, ``reasoning_content`` and ``tool_calls`` only where there are
some, arguments spelled as they came, and call ids as the engine gave them, which the session replaces.
"""

from typing import cast

from turnkeeper.core.tokens import TokenIds
from turnkeeper.engines.engine import GenerateRequest, ParseMessage
from turnkeeper.engines.reply import expect_object
from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import MAX_DEPTH, JsonObject, Message, encode_json, is_too_deep
from turnkeeper.rendering import ParsedReply, Renderer, parse_completion


def canonicalise_message(message: JsonObject, url: str) -> JsonObject:
    """Bring an engine's message into canonical form; its null members are left out."""
    if is_too_deep(message):
        raise EngineProtocolError(f"the reply of {url} has a message nested deeper than {MAX_DEPTH} levels", url=url)
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise EngineProtocolError(
            f"the reply of {url} has a {type(content).__name__} as content, expected text", url=url
        )
    known = {"role", "content", "reasoning_content", "reasoning", "tool_calls"}
    # Members of other roles, and of a protocol that is not served: a client that replays them would be refused.
    foreign = {"function_call", "name", "tool_call_id"}
    result: JsonObject = {"role": "assistant", "content": content or ""}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        result["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise EngineProtocolError(f"the reply of {url} has a {type(calls).__name__} as tool_calls", url=url)
        result["tool_calls"] = [_canonicalise_call(call, url) for call in cast(list[object], calls)]
    return result | {key: value for key, value in message.items() if key not in known | foreign and value is not None}


def _canonicalise_call(call: object, url: str) -> JsonObject:
    entry = expect_object(call, "tool_calls[]", url)
    function = expect_object(entry.get("function"), "tool_calls[].function", url)
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise EngineProtocolError(f"the reply of {url} has a tool call without a function name: {name!r}", url=url)
    if not isinstance(arguments, str):  # some engines answer the object itself
        arguments = encode_json({} if arguments is None else arguments).decode()
    return {
        "id": str(entry.get("id") or ""),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def build_assistant_message(reply: ParsedReply) -> JsonObject:
    """Build the message of a reply that turnkeeper parsed; a call's id is empty where the format has none."""
    message: JsonObject = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.tool_calls
        ]
    return message


def build_parser(renderer: Renderer) -> ParseMessage:
    """Make the parser of a model family, which also reads thinking that the prompt opened."""

    def parse(request: GenerateRequest, ids: TokenIds) -> Message:
        return build_assistant_message(parse_completion(renderer.parser(request.prompt_ids[-64:], request.tools), ids))

    return parse


def trim_stop(message: Message, stop: str) -> Message:
    """Cut a stop string and what follows it from a message, as engines do with the text whose ids they keep."""
    for field in ("reasoning_content", "content"):
        text = message.get(field)
        if isinstance(text, str) and stop in text:
            return {**message, field: text[: text.index(stop)]}
    return message
