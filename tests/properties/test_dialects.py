"""What a dialect says, its client sends back: nothing is lost on the way.

1. A reply, whole or streamed in any pieces, becomes what an SDK hands to its user; replayed from there it is the stored
   message again: text, reasoning and calls, arguments equal by value, or whole where they spell no object.
2. Streamed and unstreamed replies are one message to the SDK.

The oracle compares plain strings and JSON values; it uses no matcher.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai._models import construct_type_unchecked
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from dialectkit import CONTEXT, START, TEXTS, VALUES, call, make_reply
from turnkeeper.dialects import CHAT, MESSAGES, RESPONSES, AgentCall, Dialect, parse_events
from turnkeeper.jsontypes import JsonObject

OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
SPELLINGS = st.builds(json.dumps, OBJECTS, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 1]))
BROKEN = st.sampled_from(["", "{", "[1]", "null", '{"a":1,"a":2}', '{"a":NaN}', '{"a":"\\ud83d"}', "word"])
NAMES = st.sampled_from(["f", "g", "mcp__f", "patch"])
PIECES = st.lists(st.integers(0, 12), max_size=3)


@st.composite
def assistants(draw: st.DrawFn) -> JsonObject:
    """Assistant messages as engines give them."""
    message: JsonObject = {"role": "assistant", "content": draw(TEXTS)}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(TEXTS.filter(bool))
    count = draw(st.integers(0, 3))
    if count:
        arguments = SPELLINGS | BROKEN
        message["tool_calls"] = [call(f"c{index}", draw(NAMES), draw(arguments)) for index in range(count)]
    return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One dialect with its SDK."""

    dialect: Dialect
    body: JsonObject
    """A request before the user's question."""
    read_whole: Callable[[bytes], Any]
    """What the SDK makes of a body."""
    read_stream: Callable[[bytes], Any]
    """What the SDK makes of a stream."""
    replay: Callable[[Any], JsonObject]
    """A request that goes on from what the SDK gave."""

    def ask(self, **fields: Any) -> AgentCall:
        return self.dialect.parse_request({**self.body, **fields}, CONTEXT)


def read_chat_stream(stream: bytes) -> ChatCompletion:
    state: Any = ChatCompletionStreamState()
    for event in parse_events(stream):
        if event.data != "[DONE]":
            state.handle_chunk(ChatCompletionChunk.model_validate_json(event.data))
    return state.get_final_completion()


def replay_chat(completion: ChatCompletion) -> JsonObject:
    message = completion.choices[0].message.model_dump()
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "r"} for each in message["tool_calls"] or ()]
    return {"messages": [USER, message, *results, USER]}


def read_messages_stream(stream: bytes) -> Message:
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in parse_events(stream):
        data: Any = json.loads(event.data)
        snapshot = accumulate_event(event=data, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


def replay_messages(message: Message) -> JsonObject:
    blocks = [block.to_dict() for block in message.content]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "r"}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    more = [*results, {"type": "text", "text": "u"}]
    return {"messages": [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": more}]}


def read_responses_stream(stream: bytes) -> Response:
    *_, last = parse_events(stream)
    return build_response(json.loads(last.data)["response"])


def build_response(body: Any) -> Response:
    """As the SDK builds it."""
    return construct_type_unchecked(type_=Response, value=body)


def replay_responses(response: Response) -> JsonObject:
    items = [item.to_dict() for item in response.output]
    calls = [item for item in items if "call_id" in item]
    outputs = [{"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "r"} for item in calls]
    return {"input": [USER, *items, *outputs, USER]}


USER: JsonObject = {"role": "user", "content": "u"}
FUNCTION: JsonObject = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CLIENTS: dict[str, Client] = {
    "chat": Client(
        dialect=CHAT,
        body={"messages": [USER]},
        read_whole=ChatCompletion.model_validate_json,
        read_stream=read_chat_stream,
        replay=replay_chat,
    ),
    "messages": Client(
        dialect=MESSAGES,
        body={"messages": [USER]},
        read_whole=Message.model_validate_json,
        read_stream=read_messages_stream,
        replay=replay_messages,
    ),
    "responses": Client(
        dialect=RESPONSES,
        body={
            "input": "u",
            "tools": [
                FUNCTION,
                {"type": "custom", "name": "patch"},
                {"type": "namespace", "name": "mcp", "tools": [FUNCTION]},
            ],
        },
        read_whole=lambda body: build_response(json.loads(body)),
        read_stream=read_responses_stream,
        replay=replay_responses,
    ),
}

BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def spell_stream(asked: AgentCall, message: JsonObject, pieces: Sequence[int]) -> bytes:
    """The stream of a message of which some text went out early."""
    stream = asked.open_stream(START)
    said = b""
    reasoning, content = message.get("reasoning_content", ""), message["content"]
    for size in pieces:
        if reasoning:
            said += stream.extend(reasoning=reasoning[:size], content="")
            reasoning = reasoning[size:]
        else:
            said += stream.extend(reasoning="", content=content[:size])
            content = content[size:]
    return said + stream.finish(make_reply(message))


def describe(message: JsonObject) -> list[Any]:
    """What must survive: texts as they are, calls with their arguments as values where they spell an object."""
    calls = [
        (each["id"], each["function"]["name"], read_value(each["function"]["arguments"]))
        for each in message.get("tool_calls") or ()
    ]
    return [message["content"], message.get("reasoning_content") or "", calls]


def read_value(arguments: str) -> Any:
    """The arguments' value; the text itself where a client could not hold the value, and {} for none."""
    try:
        value = json.loads(arguments or "{}", object_pairs_hook=keep_pairs)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, UnicodeEncodeError):
        return arguments
    return value if isinstance(value, dict) else arguments


def keep_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


@pytest.mark.parametrize("name", CLIENTS)
@BOUNDED
@given(message=assistants())
def test_a_reply_comes_back_as_it_was_stored(name: str, message: JsonObject) -> None:
    client = CLIENTS[name]
    given_back = client.replay(client.read_whole(client.ask().render_reply(make_reply(message))))
    messages = client.ask(**given_back).request.messages
    assert describe(dict(messages[1])) == describe(message)
    assert [each["role"] for each in messages[2:]] == ["tool"] * len(message.get("tool_calls", ())) + ["user"]


@pytest.mark.parametrize("name", CLIENTS)
@BOUNDED
@given(message=assistants(), pieces=PIECES)
def test_a_streamed_reply_comes_back_as_it_was_stored(name: str, message: JsonObject, pieces: list[int]) -> None:
    client = CLIENTS[name]
    streamed = client.read_stream(spell_stream(client.ask(stream=True), message, pieces))
    messages = client.ask(**client.replay(streamed)).request.messages
    assert describe(dict(messages[1])) == describe(message)
