"""Anthropic Messages.

1. Whatever its clients vary (strings or blocks, cache marks, the billing block, the order of results) becomes one
   canonical request; what is left out is noted.
2. What is malformed or not served is refused by the path of its field; images above all.
3. A reply is one message: its blocks, never none, why it stopped, what it cost.
4. A stream says the same in events that the SDK assembles; each block has its own type and index.
5. Errors have the envelope, types and statuses that clients know; a prompt that is too long says so in their words.
"""

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message

from dialectkit import CALLS, CONTEXT, MESSAGES, START, make_reply
from turnkeeper.dialects import MESSAGES as DIALECT
from turnkeeper.dialects import AgentCall, Event, parse_events
from turnkeeper.dialects.opaque_reasoning import sign_thinking
from turnkeeper.errors import (
    AuthenticationError,
    BodyTooLargeError,
    CapacityError,
    ContextLengthError,
    EngineError,
    EnginePausedError,
    EngineTimeoutError,
    RequestError,
    SessionNotFoundError,
    TokenIntegrityError,
    TurnAbortedError,
    TurnkeeperError,
    UnsupportedEncodingError,
)
from turnkeeper.jsontypes import JsonObject

USER: JsonObject = {"role": "user", "content": "hi"}
EPHEMERAL: JsonObject = {"cache_control": {"type": "ephemeral"}}
TOOL: JsonObject = {"name": "f", "description": "does", "input_schema": {"type": "object", "properties": {}}}
FUNCTION: JsonObject = {
    "type": "function",
    "function": {"name": "f", "description": "does", "parameters": {"type": "object", "properties": {}}},
}


def text(value: str, **extra: Any) -> JsonObject:
    return {"type": "text", "text": value, **extra}


def use(call_id: str, **given: Any) -> JsonObject:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": given}


def result(call_id: str, content: Any = "r", **extra: Any) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **extra}


def parse(*messages: JsonObject, **fields: Any) -> AgentCall:
    return DIALECT.parse_request({"messages": list(messages or (USER,)), "max_tokens": 5, **fields}, CONTEXT)


def read(*messages: JsonObject, **fields: Any) -> list[Any]:
    return list(parse(*messages, **fields).request.messages)


# What clients vary.

SYSTEMS: dict[str, Any] = {
    "string": "be brief",
    "blocks": [text("be "), text("brief", **EPHEMERAL)],
    "billing block": [text("x-anthropic-billing-header: cc_version=2.1; cch=a1;"), text("be brief")],
    "billing line": "x-anthropic-billing-header: cc_version=2.1; cch=b2;\nbe brief",
}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
def test_a_system_prompt_is_one_text_without_the_billing_block(system: Any) -> None:
    assert read(system=system) == [{"role": "system", "content": "be brief"}, USER]


def test_only_the_billing_block_is_taken_out_and_only_of_the_system_prompt() -> None:
    quoted = "x-anthropic-billing-header: what is that?"
    system = [text("first"), text(quoted)]
    assert read({"role": "user", "content": quoted}, system=system) == [
        {"role": "system", "content": "first" + quoted},
        {"role": "user", "content": quoted},
    ]


def test_no_system_prompt_is_no_message() -> None:
    billing = [text("x-anthropic-billing-header: cch=1;")]
    assert read(system=None) == read(system="") == read(system=[]) == read(system=billing) == [USER]


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_string_and_its_blocks_are_one_text(role: str) -> None:
    blocks = {"role": role, "content": [text("h", **EPHEMERAL), text("i", citations=None)]}
    assert read(blocks, USER) == read({"role": role, "content": "hi"}, USER) == [{"role": role, "content": "hi"}, USER]


def test_an_assistant_is_thinking_text_and_calls() -> None:
    blocks = [
        {"type": "thinking", "thinking": "why", "signature": sign_thinking("why")},
        text("so"),
        use("c0", a=1.0, t="中"),
    ]
    call = parse(USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result("c0")]})
    function = {"name": "f", "arguments": '{"a": 1.0, "t": "中"}'}
    assert list(call.request.messages) == [
        USER,
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "why",
            "tool_calls": [{"id": "c0", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "r"},
    ]
    assert call.request.notes == ()


def test_results_stand_before_text_and_in_the_order_of_their_calls() -> None:
    calls = {"role": "assistant", "content": [use("a"), use("b"), use("c")]}
    first = {"role": "user", "content": [result("c", "3", is_error=False, **EPHEMERAL), result("a", [text("1")])]}
    second = {"role": "user", "content": [text("go "), result("b", None), text("on")]}
    assert [(each["role"], each["content"]) for each in read(USER, calls, first, second)[2:]] == [
        ("tool", "1"),
        ("tool", ""),
        ("tool", "3"),
        ("user", "go on"),
    ]


NOTED: dict[str, tuple[list[JsonObject], str]] = {
    "foreign signature": ([{"type": "thinking", "thinking": "t", "signature": "SIG0=="}], "another signature"),
    "no signature": ([{"type": "thinking", "thinking": "t"}], "no signature"),
    "redacted": ([{"type": "redacted_thinking", "data": "x"}, text("so")], "redacted thinking"),
}


@pytest.mark.parametrize(("blocks", "note"), NOTED.values(), ids=NOTED.keys())
def test_strange_thinking_is_noted_and_no_error(blocks: list[JsonObject], note: str) -> None:
    call = parse({"role": "assistant", "content": blocks}, USER)
    assert call.request.messages[0].get("reasoning_content") == ("t" if blocks[0].get("thinking") else None)
    assert any(note in each for each in call.request.notes)


def test_a_failed_result_is_its_text_and_noted() -> None:
    call = parse(
        {"role": "assistant", "content": [use("a")]}, {"role": "user", "content": [result("a", is_error=True)]}
    )
    assert call.request.messages[-1] == {"role": "tool", "tool_call_id": "a", "content": "r"}
    assert any("is_error" in note for note in call.request.notes)


def test_tools_become_functions_and_those_of_servers_are_left_out_with_a_note() -> None:
    call = parse(tools=[{**TOOL, **EPHEMERAL}, {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}])
    assert list(call.request.tools) == [FUNCTION]
    assert any("web_search_20250305" in note for note in call.request.notes)


CHOICES: dict[str, tuple[JsonObject | None, JsonObject]] = {
    "none given": (None, {}),
    "auto": ({"type": "auto"}, {}),
    "any": ({"type": "any"}, {"tool_choice": "required"}),
    "none": ({"type": "none"}, {"tool_choice": "none"}),
    "one": ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
    "one at a time": ({"type": "auto", "disable_parallel_tool_use": True}, {"parallel_tool_calls": False}),
}


@pytest.mark.parametrize(("choice", "forwarded"), CHOICES.values(), ids=CHOICES.keys())
def test_a_choice_of_tools_is_said_as_chat_says_it(choice: JsonObject | None, forwarded: JsonObject) -> None:
    assert parse(tools=[TOOL], tool_choice=choice).request.forwarded == forwarded
    assert parse(tools=[], tool_choice=choice).request.forwarded == {}


def test_sampling_fields_have_their_chat_names() -> None:
    schema = {"type": "object"}
    call = parse(
        stop_sequences=["END"],
        temperature=0.5,
        top_k=4,
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": schema}},
    )
    assert call.request.sampling == {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 4,
        "stop": ["END"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}},
    }
    assert parse(stop_sequences=[]).request.sampling == {"max_tokens": 5}


def test_what_only_a_hosted_model_knows_is_left_out_and_noted() -> None:
    call = parse(thinking={"type": "adaptive"}, metadata={"user_id": "u"}, context_management={}, x_new=[1])
    assert (call.request.forwarded, call.request.dropped_fields) == ({}, ("x_new",))
    assert call.request.notes == ("left out context_management", "left out metadata", "left out thinking")
    assert call.request.dialect == "messages"


# What is refused.

IMAGE: JsonObject = {"type": "image", "source": {"type": "base64", "data": ""}}
REFUSED: dict[str, tuple[JsonObject, str]] = {
    "messages missing": ({"messages": None}, "messages must be a list"),
    "messages empty": ({"messages": []}, "an empty list"),
    "message as text": ({"messages": ["x"]}, r"messages\[0\] must be an object"),
    "unknown role": ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\].role"),
    "content as number": ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\].content must be a string"),
    "assistant's content": ({"messages": [{"role": "assistant", "content": None}, USER]}, "a list of blocks, got null"),
    "block as text": ({"messages": [{"role": "user", "content": ["x"]}]}, r"content\[0\] must be an object"),
    "text missing": ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, r"content\[0\].text"),
    "image": ({"messages": [{"role": "user", "content": [IMAGE]}]}, r"content\[0\].type 'image' is not served"),
    "image in a result": (
        {"messages": [{"role": "user", "content": [result("a", [text("t"), IMAGE])]}]},
        r"content\[0\].content\[1\].type 'image'",
    ),
    "server tool's use": (
        {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER]},
        "'server_tool_use' is not served",
    ),
    "image of an assistant": ({"messages": [{"role": "assistant", "content": [IMAGE]}, USER]}, "'image'"),
    "result without call": ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    "is_error as text": ({"messages": [{"role": "user", "content": [result("a", is_error="no")]}]}, "is_error"),
    "use without name": (
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}, USER]},
        r"content\[0\].name",
    ),
    "input as list": (
        {"messages": [{"role": "assistant", "content": [{**use("a"), "input": [1]}]}, USER]},
        r"content\[0\].input must be an object",
    ),
    "system as number": ({"system": 3}, "system must be a string or a list"),
    "image in system": ({"system": [IMAGE]}, r"system\[0\].type 'image'"),
    "tools as object": ({"tools": {}}, "tools must be a list"),
    "tool without name": ({"tools": [{"input_schema": {}}]}, r"tools\[0\].name"),
    "schema as list": ({"tools": [{"name": "f", "input_schema": []}]}, r"tools\[0\].input_schema"),
    "choice unknown": ({"tools": [TOOL], "tool_choice": {"type": "some"}}, r"tool_choice.type .*'some'"),
    "choice as text": ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice must be an object"),
    "stop as text": ({"stop_sequences": "END"}, "stop_sequences must be a list"),
    "stop empty": ({"stop_sequences": [""]}, "stop_sequences"),
    "format unknown": ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    "owned": ({"input_ids": [1]}, "input_ids"),
    "hot": ({"temperature": "hot"}, "temperature"),
    "limit": ({"max_tokens": 0}, "max_tokens"),
    "stream": ({"stream": "yes"}, "stream"),
    "model": ({"model": 3}, "model"),
}


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_served_is_refused_by_the_path_of_its_field(fields: JsonObject, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        DIALECT.parse_request({"messages": [USER], **fields}, CONTEXT)


# Replies.


def test_a_reply_is_one_message() -> None:
    body = json.loads(parse(model="m").render_reply(make_reply(MESSAGES["everything"], "tool_calls")))
    assert (body["id"], body["type"], body["role"], body["model"]) == ("id_0123", "message", "assistant", "m")
    assert body["content"] == [
        {"type": "thinking", "thinking": "why", "signature": sign_thinking("why")},
        {"type": "text", "text": "text"},
        {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1.0}},
        {"type": "tool_use", "id": "c1", "name": "g", "input": {}},
    ]
    assert body["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 2,
    }
    Message.model_validate(body, strict=True)


def test_an_empty_reply_has_a_block() -> None:
    body = json.loads(parse().render_reply(make_reply(MESSAGES["nothing"])))
    assert body["content"] == [{"type": "text", "text": ""}]


STOPS: dict[str, tuple[str, Any, list[JsonObject], str, str | None]] = {
    "end": ("stop", 2, [], "end_turn", None),
    "stop string": ("stop", "END", [], "stop_sequence", "END"),
    "calls": ("tool_calls", 2, CALLS, "tool_use", None),
    "calls under stop": ("stop", 2, CALLS, "tool_use", None),
    "budget": ("length", None, [], "max_tokens", None),
    "budget with calls": ("length", None, CALLS, "max_tokens", None),
    "withheld": ("content_filter", None, [], "refusal", None),
}


@pytest.mark.parametrize(("finish", "matched", "calls", "reason", "sequence"), STOPS.values(), ids=STOPS.keys())
def test_why_a_reply_stopped(
    finish: str, matched: Any, calls: list[JsonObject], reason: str, sequence: str | None
) -> None:
    message = {"role": "assistant", "content": "t", "tool_calls": calls}
    body = json.loads(parse().render_reply(make_reply(message, finish, matched_stop=matched)))
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


# Streams.


def read_events(stream: bytes) -> list[Event]:
    events = list(parse_events(stream))
    assert all(json.loads(event.data)["type"] == event.name for event in events)
    return events


def assemble(events: list[Event]) -> JsonObject:
    """What Anthropic's SDK makes of the events, pings left out as it does."""
    snapshot, buffers = None, {}
    for event in events:
        if event.name != "ping":
            data: Any = json.loads(event.data)
            snapshot = accumulate_event(event=data, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    return {key: value for key, value in snapshot.to_dict().items() if key != "stop_details"}  # newer than the protocol


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
@pytest.mark.parametrize("heartbeats", [0, 1, 3])
def test_a_stream_adds_up_to_the_message(message: JsonObject, heartbeats: int) -> None:
    call = parse(model="m")
    stream = call.open_stream(START)
    events = read_events(b"".join(stream.heartbeat() for _ in range(heartbeats)) + stream.finish(make_reply(message)))
    assert assemble(events) == json.loads(call.render_reply(make_reply(message)))
    assert [event.name for event in events if event.name == "ping"] == ["ping"] * max(0, heartbeats - 1)


def test_the_events_of_a_reply() -> None:
    stream = parse().open_stream(START).finish(make_reply(MESSAGES["everything"]))
    events = [json.loads(event.data) for event in read_events(stream)]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [event["type"] for event in events] == [
        "message_start",
        *[block[0], block[1], block[1], block[2]],
        *block * 3,
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["usage"]["input_tokens"] == START.prompt_tokens
    assert [event["index"] for event in events if event["type"] == block[0]] == [0, 1, 2, 3]
    deltas = [event["delta"] for event in events if event["type"] == block[1]]
    assert [delta["type"] for delta in deltas] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
        "input_json_delta",
    ]
    assert deltas[3]["partial_json"] == '{"a":  1.0}'
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 2


def test_text_that_went_out_early_is_not_said_again() -> None:
    call = parse()
    stream = call.open_stream(START)
    early = stream.extend(reasoning="w", content="") + stream.heartbeat() + stream.extend(reasoning="hy", content="te")
    events = read_events(early + stream.finish(make_reply(MESSAGES["everything"])))
    assert assemble(events) == json.loads(call.render_reply(make_reply(MESSAGES["everything"]))) | {"model": "policy"}
    assert sum(event.name == "content_block_start" for event in events) == 4


def test_a_stream_that_fails_ends_with_the_error_event() -> None:
    stream = parse().open_stream(START)
    events = read_events(stream.heartbeat() + stream.fail(EnginePausedError("wait")))
    assert [event.name for event in events] == ["message_start", "error"]
    assert json.loads(events[-1].data)["error"]["type"] == "overloaded_error"


# Errors.

ERRORS: dict[str, tuple[TurnkeeperError, int, str, str]] = {
    "request": (RequestError("x"), 400, "invalid_request_error", "request"),
    "key": (AuthenticationError("x"), 401, "authentication_error", "authentication"),
    "session": (SessionNotFoundError("x"), 404, "not_found_error", "session_not_found"),
    "size": (BodyTooLargeError("x"), 413, "request_too_large", "body_too_large"),
    "encoding": (UnsupportedEncodingError("x"), 415, "invalid_request_error", "unsupported_encoding"),
    "limit": (CapacityError("x"), 429, "rate_limit_error", "capacity"),
    "fault": (TokenIntegrityError("x"), 500, "api_error", "token_integrity"),
    "engine": (EngineError("x"), 502, "api_error", "engine"),
    "paused": (EnginePausedError("x"), 529, "overloaded_error", "engine_paused"),
    "aborted": (TurnAbortedError("x"), 529, "overloaded_error", "turn_aborted"),
    "slow": (EngineTimeoutError("x"), 504, "timeout_error", "engine_timeout"),
}


@pytest.mark.parametrize(("error", "status", "kind", "code"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_has_the_envelope_that_clients_know(error: TurnkeeperError, status: int, kind: str, code: str) -> None:
    assert DIALECT.choose_status(error) == status
    body = json.loads(DIALECT.render_error(error))
    assert body == {"type": "error", "error": {"type": kind, "message": "x", "code": code}}


def test_a_prompt_that_is_too_long_says_so_in_the_words_that_make_clients_compact() -> None:
    known = json.loads(DIALECT.render_error(ContextLengthError("x", prompt_tokens=120, limit_tokens=100)))
    assert known["error"]["message"] == "prompt is too long: 120 tokens > 100 maximum"
    assert known["error"]["code"] == "context_length_exceeded"
    unknown = json.loads(DIALECT.render_error(ContextLengthError("the engine refuses")))
    assert unknown["error"]["message"] == "prompt is too long: the engine refuses"
