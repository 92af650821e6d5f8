"""OpenAI Responses.

1. Items become canonical messages: neighbouring items of the assistant are one message, results stand in the order of
   their calls, reasoning is its text wherever a client keeps it.
2. Custom tools and namespaces become functions, and their calls come out as what they were; hosted tools are left out
   with a note.
3. What is malformed or not served is refused by the path of its field.
4. A reply is one response: its items, how it ended, what it cost.
5. A stream says the same in numbered events that the SDK assembles; a failure is one of them.
"""

import json
from typing import Any

import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from dialectkit import CALLS, CONTEXT, MESSAGES, START, call, make_reply
from turnkeeper.dialects import RESPONSES, AgentCall, parse_events
from turnkeeper.dialects.opaque_reasoning import encode_reasoning
from turnkeeper.errors import (
    AuthenticationError,
    ContextLengthError,
    EngineError,
    EnginePausedError,
    RequestError,
    TurnkeeperError,
)
from turnkeeper.jsontypes import JsonObject

USER: JsonObject = {"role": "user", "content": "hi"}
SCHEMA: JsonObject = {"type": "object", "properties": {}}
FUNCTION: JsonObject = {"type": "function", "name": "f", "description": "does", "parameters": SCHEMA, "strict": True}
PATCH: JsonObject = {
    "type": "custom",
    "name": "patch",
    "description": "edits",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
SPACE: JsonObject = {"type": "namespace", "name": "mcp", "description": "a server", "tools": [FUNCTION, PATCH]}


def parse(items: Any = "hi", **fields: Any) -> AgentCall:
    return RESPONSES.parse_request({"input": items, **fields}, CONTEXT)


def read(items: Any = "hi", **fields: Any) -> list[Any]:
    return list(parse(items, **fields).request.messages)


def message(role: str, *texts: str, kind: str = "input_text") -> JsonObject:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": each} for each in texts]}


def function_call(call_id: str, arguments: str = "{}", name: str = "f", **extra: Any) -> JsonObject:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **extra}


def output(call_id: str, value: Any = "r", kind: str = "function_call_output") -> JsonObject:
    return {"type": kind, "call_id": call_id, "output": value}


def reasoning(**fields: Any) -> JsonObject:
    return {"type": "reasoning", "id": "rs_0", "summary": [], **fields}


# Items.


def test_the_ways_to_say_a_word_are_one() -> None:
    assert read("hi") == read([USER]) == read([message("user", "h", "i")]) == [USER]


def test_instructions_lead_and_developers_stay_as_they_were_sent() -> None:
    items = [message("developer", "a"), {"role": "system", "content": "b"}, USER]
    assert [(each["role"], each["content"]) for each in read(items, instructions="first")] == [
        ("system", "first"),
        ("developer", "a"),
        ("system", "b"),
        ("user", "hi"),
    ]


def test_neighbouring_items_of_the_assistant_are_one_message() -> None:
    items = [
        USER,
        reasoning(summary=[{"type": "summary_text", "text": "why"}]),
        message("assistant", "so", kind="output_text"),
        function_call("c0", '{"a":  1.0}'),
        function_call("c1"),
        output("c1", [{"type": "input_text", "text": "1"}]),
        output("c0", "0"),
        message("assistant", "done", kind="output_text"),
        USER,
    ]
    assert read(items) == [
        USER,
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "why",
            "tool_calls": [call("c0", "f", '{"a":  1.0}'), call("c1", "f", "{}")],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "0"},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "assistant", "content": "done"},
        USER,
    ]


REASONINGS: dict[str, tuple[JsonObject, str | None, bool]] = {
    "summary": (reasoning(summary=[{"type": "summary_text", "text": "why"}]), "why", False),
    "content": (reasoning(content=[{"type": "reasoning_text", "text": "why"}]), "why", False),
    "sealed only": (reasoning(encrypted_content=encode_reasoning("why")), "why", False),
    "text and ours": (reasoning(summary=[{"text": "why"}], encrypted_content=encode_reasoning("why")), "why", False),
    "text and foreign": (reasoning(summary=[{"text": "why"}], encrypted_content="ENC0"), "why", True),
    "foreign only": (reasoning(encrypted_content="ENC0", content=None), None, True),
    "nothing": (reasoning(), None, False),
}


@pytest.mark.parametrize(("item", "text", "is_noted"), REASONINGS.values(), ids=REASONINGS.keys())
def test_reasoning_is_its_text_wherever_a_client_keeps_it(item: JsonObject, text: str | None, is_noted: bool) -> None:
    parsed = parse([USER, item, message("assistant", "so", kind="output_text"), USER])
    assert parsed.request.messages[1].get("reasoning_content") == text
    assert any("another server" in note for note in parsed.request.notes) == is_noted


# Tools.


def test_tools_become_functions() -> None:
    parsed = parse(tools=[FUNCTION, PATCH, SPACE, {"type": "web_search"}, {"type": "mcp", "server_label": "x"}])
    names = [tool["function"]["name"] for tool in parsed.request.tools]
    assert names == ["f", "patch", "mcp__f", "mcp__patch"]
    assert parsed.request.tools[0] == {
        "type": "function",
        "function": {"name": "f", "description": "does", "parameters": SCHEMA, "strict": True},
    }
    patch = parsed.request.tools[1]["function"]
    assert patch["parameters"] == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
    }
    assert patch["description"] == "edits\n\ninput follows this lark grammar:\nstart: /.+/"
    assert [note for note in parsed.request.notes if "server of its own" in note] == [
        "left out tools[3]: 'web_search' runs on a server of its own",
        "left out tools[4]: 'mcp' runs on a server of its own",
    ]


CALLED: dict[str, tuple[JsonObject, JsonObject]] = {
    "function": (call("c", "f", '{"a":1}'), {"type": "function_call", "name": "f", "arguments": '{"a":1}'}),
    "unknown function": (call("c", "x", ""), {"type": "function_call", "name": "x", "arguments": ""}),
    "of a namespace": (
        call("c", "mcp__f", "{}"),
        {"type": "function_call", "name": "f", "namespace": "mcp", "arguments": "{}"},
    ),
    "custom": (
        call("c", "patch", '{"input": "*** 中"}'),
        {"type": "custom_tool_call", "name": "patch", "input": "*** 中"},
    ),
    "custom of a namespace": (
        call("c", "mcp__patch", '{"input": "x"}'),
        {"type": "custom_tool_call", "name": "patch", "namespace": "mcp", "input": "x"},
    ),
    "custom without its string": (
        call("c", "patch", '{"input": 3}'),
        {"type": "custom_tool_call", "name": "patch", "input": '{"input": 3}'},
    ),
    "custom with broken arguments": (
        call("c", "patch", '{"input": "x'),
        {"type": "custom_tool_call", "name": "patch", "input": '{"input": "x'},
    ),
}


@pytest.mark.parametrize(("sampled", "item"), CALLED.values(), ids=CALLED.keys())
def test_a_call_comes_out_as_what_it_was_and_comes_back_as_it_was_sampled(
    sampled: JsonObject, item: JsonObject
) -> None:
    asked = parse(tools=[FUNCTION, PATCH, SPACE])
    assistant = {"role": "assistant", "content": "", "tool_calls": [sampled]}
    (rendered,) = json.loads(asked.render_reply(make_reply(assistant)))["output"]
    assert {key: value for key, value in rendered.items() if key in {*item, "namespace"}} == item
    assert (rendered["call_id"], rendered["status"]) == ("c", "completed")
    result = output("c", kind=f"{rendered['type']}_output")
    assert read([USER, rendered, result])[1] == assistant


CHOICES: dict[str, tuple[JsonObject, JsonObject]] = {
    "auto": ({"tool_choice": "auto", "parallel_tool_calls": True}, {}),
    "required": ({"tool_choice": "required"}, {"tool_choice": "required"}),
    "one": (
        {"tool_choice": {"type": "function", "name": "f"}},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    "one at a time": ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
}


@pytest.mark.parametrize(("fields", "forwarded"), CHOICES.values(), ids=CHOICES.keys())
def test_a_choice_of_tools_is_said_as_chat_says_it(fields: JsonObject, forwarded: JsonObject) -> None:
    assert parse(tools=[FUNCTION], **fields).request.forwarded == forwarded
    assert parse(tools=[{"type": "web_search"}], **fields).request.forwarded == {}


def test_sampling_fields_have_their_chat_names() -> None:
    shape = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    parsed = parse(max_output_tokens=5, temperature=0.5, text={"format": shape, "verbosity": "low"})
    assert parsed.request.sampling == {
        "max_tokens": 5,
        "temperature": 0.5,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
    }
    assert "left out text.verbosity" in parsed.request.notes
    assert parse(text={"format": {"type": "text"}}).request.sampling == {}
    assert parse(text={"format": {"type": "json_object"}}).request.sampling == {
        "response_format": {"type": "json_object"}
    }


def test_what_only_a_hosted_service_knows_is_left_out_and_noted() -> None:
    parsed = parse(store=False, reasoning={"summary": "auto"}, client_metadata={}, x_new=1)
    assert (parsed.request.forwarded, parsed.request.dropped_fields) == ({}, ("x_new",))
    assert parsed.request.notes == ("left out client_metadata", "left out reasoning", "left out store")
    assert parsed.request.dialect == "responses"


# What is refused.

REFUSED: dict[str, tuple[JsonObject, str]] = {
    "input missing": ({"input": None}, "input must be a string or a list"),
    "input empty": ({"input": []}, "an empty list"),
    "item as text": ({"input": ["x"]}, r"input\[0\] must be an object"),
    "unknown item": (
        {"input": [USER, {"type": "web_search_call"}]},
        r"input\[1\].type 'web_search_call' is not served",
    ),
    "item reference": ({"input": [{"type": "item_reference", "id": "x"}]}, r"input\[0\].id 'x' names no item"),
    "reference without id": ({"input": [{"type": "item_reference"}]}, r"input\[0\].id must be a string"),
    "reference by a number": (
        {"input": [USER, {"type": "item_reference", "id": 3}]},
        r"input\[1\].id must be a string",
    ),
    "item without type": ({"input": [{"text": "x"}]}, r"input\[0\].type None"),
    "type as list": ({"input": [{"type": ["message"]}]}, r"input\[0\].type"),
    "unknown role": ({"input": [{"role": "tool", "content": "x"}]}, r"input\[0\].role"),
    "content missing": ({"input": [{"role": "user"}]}, r"input\[0\].content must be a string"),
    "image": ({"input": [message("user", "x", kind="input_image")]}, "'input_image' is not served"),
    "image in an output": ({"input": [output("c", [{"type": "input_image"}])]}, r"output\[0\].type 'input_image'"),
    "call without name": ({"input": [{"type": "function_call", "call_id": "c", "arguments": ""}]}, r"input\[0\].name"),
    "arguments as object": ({"input": [{**function_call("c"), "arguments": {}}]}, r"input\[0\].arguments"),
    "output without call": ({"input": [{"type": "function_call_output", "output": "x"}]}, "call_id"),
    "summary as text": ({"input": [reasoning(summary="x")]}, r"input\[0\].summary must be a list"),
    "stored response": ({"previous_response_id": "resp_1"}, "previous_response_id is not served"),
    "stored conversation": ({"conversation": "conv_1"}, "conversation is not served"),
    "background": ({"background": True}, "background"),
    "tools as object": ({"tools": {}}, "tools must be a list"),
    "tool without name": ({"tools": [{"type": "function"}]}, r"tools\[0\].name"),
    "nested without name": ({"tools": [{**SPACE, "tools": [{"type": "custom"}]}]}, r"tools\[0\].tools\[0\].name"),
    "two of one name": ({"tools": [SPACE, {**FUNCTION, "name": "mcp__f"}]}, r"tools\[1\] is the second .*'mcp__f'"),
    "choice unknown": ({"tools": [FUNCTION], "tool_choice": "some"}, "tool_choice must be one of"),
    "hosted choice": ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
    "format unknown": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    "instructions as list": ({"instructions": []}, "instructions must be a string"),
    "include as text": ({"include": "x"}, "include must be a list"),
    "owned": ({"prompt": {"id": "x"}}, "prompt"),
    "limit": ({"max_output_tokens": 0}, "max_output_tokens"),
    "stream": ({"stream": "yes"}, "stream"),
}


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_served_is_refused_by_the_path_of_its_field(fields: JsonObject, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        RESPONSES.parse_request({"input": "hi", **fields}, CONTEXT)


# Replies.


def test_a_reply_is_one_response() -> None:
    asked = parse(model="m", tools=[FUNCTION], include=["reasoning.encrypted_content"], metadata={"k": "v"})
    body = json.loads(asked.render_reply(make_reply(MESSAGES["everything"], "tool_calls", response_id="resp_ab")))
    assert [(item["type"], item["id"]) for item in body["output"]] == [
        ("reasoning", "rs_ab_0"),
        ("message", "msg_ab_0"),
        ("function_call", "fc_ab_0"),
        ("function_call", "fc_ab_1"),
    ]
    assert body["output"][0]["encrypted_content"] == encode_reasoning("why")
    assert body["output"][2]["arguments"] == CALLS[0]["function"]["arguments"]
    assert (body["id"], body["status"], body["created_at"], body["model"]) == ("resp_ab", "completed", 12, "m")
    assert (body["tools"], body["metadata"]) == ([FUNCTION], {"k": "v"})
    assert body["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }
    Response.model_validate(body)


ENDS: dict[str, tuple[str, str, JsonObject | None]] = {
    "stop": ("stop", "completed", None),
    "calls": ("tool_calls", "completed", None),
    "budget": ("length", "incomplete", {"reason": "max_output_tokens"}),
    "withheld": ("content_filter", "incomplete", {"reason": "content_filter"}),
}


@pytest.mark.parametrize(("finish", "status", "details"), ENDS.values(), ids=ENDS.keys())
def test_how_a_response_ended(finish: str, status: str, details: JsonObject | None) -> None:
    reply = make_reply(MESSAGES["text"], finish)
    body = json.loads(parse().render_reply(reply))
    assert (body["status"], body["incomplete_details"]) == (status, details)
    assert read_events(parse().open_stream(START).finish(reply))[-1]["type"] == f"response.{status}"


# Streams.

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def read_events(stream: bytes) -> list[JsonObject]:
    """The events; each is one the SDK knows, numbered in order, under its name."""
    events = list(parse_events(stream))
    payloads = [json.loads(event.data) for event in events]
    assert [payload["sequence_number"] for payload in payloads] == list(range(len(payloads)))
    for event, payload in zip(events, payloads, strict=True):
        assert EVENT.validate_python(payload).type == event.name == payload["type"]
    return payloads


@pytest.mark.parametrize("assistant", MESSAGES.values(), ids=MESSAGES.keys())
@pytest.mark.parametrize("heartbeats", [0, 1, 3])
def test_a_stream_adds_up_to_the_response(assistant: JsonObject, heartbeats: int) -> None:
    asked = parse(model="m", tools=[FUNCTION])
    stream, reply = asked.open_stream(START), make_reply(assistant)
    events = read_events(b"".join(stream.heartbeat() for _ in range(heartbeats)) + stream.finish(reply))
    whole = json.loads(asked.render_reply(reply))
    assert events[-1]["response"] == {**whole, "created_at": START.created_s}
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [(event["output_index"], event["item"]) for event in done] == list(enumerate(whole["output"]))
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    for event in events:
        state.handle_event(EVENT.validate_python(event))
    assert state._completed_response is not None
    assert [item.to_dict()["type"] for item in state._completed_response.output] == [
        item["type"] for item in whole["output"]
    ]


def test_the_events_of_a_reply() -> None:
    events = read_events(parse().open_stream(START).finish(make_reply(MESSAGES["everything"])))
    item = ["output_item.added", "output_item.done"]
    arguments = ["function_call_arguments.delta", "function_call_arguments.done"]
    part, text = "reasoning_summary_part", "reasoning_summary_text"
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        *[item[0], f"{part}.added", f"{text}.delta", f"{text}.done", f"{part}.done", item[1]],
        *[item[0], "content_part.added", "output_text.delta", "output_text.done", "content_part.done", item[1]],
        *[item[0], *arguments, item[1]],
        *[item[0], *arguments, item[1]],
        "completed",
    ]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [each["status"] for each in added] == ["in_progress"] * 4
    assert added[2]["arguments"] == ""


def test_text_that_went_out_early_is_not_said_again() -> None:
    asked = parse()
    stream, reply = asked.open_stream(START), make_reply(MESSAGES["everything"])
    early = stream.extend(reasoning="w", content="") + stream.heartbeat() + stream.extend(reasoning="hy", content="te")
    events = read_events(early + stream.finish(reply))
    assert events[-1]["response"]["output"] == json.loads(asked.render_reply(reply))["output"]
    assert sum(event["type"] == "response.output_item.added" for event in events) == 4


def test_a_custom_call_is_streamed_as_one() -> None:
    reply = make_reply({"role": "assistant", "content": "", "tool_calls": [call("c", "patch", '{"input": "x"}')]})
    events = read_events(parse(tools=[PATCH]).open_stream(START).finish(reply))
    deltas = [event for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert [event["delta"] for event in deltas] == ["x"]


FAILURES: dict[str, tuple[TurnkeeperError, str]] = {
    "engine": (EngineError("x"), "engine"),
    "length": (ContextLengthError("x"), "context_length_exceeded"),
    "paused": (EnginePausedError("x"), "engine_paused"),
}


@pytest.mark.parametrize(("error", "code"), FAILURES.values(), ids=FAILURES.keys())
def test_a_stream_that_fails_says_so_in_its_last_event(error: TurnkeeperError, code: str) -> None:
    stream = parse().open_stream(START)
    events = [json.loads(event.data) for event in parse_events(stream.heartbeat() + stream.fail(error))]
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": code, "message": "x"}


def test_an_error_has_the_form_that_openai_gives_it() -> None:
    error = AuthenticationError("x")
    assert RESPONSES.choose_status(error) == 401
    assert json.loads(RESPONSES.render_error(error))["error"]["type"] == "authentication_error"
