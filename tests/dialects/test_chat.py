"""OpenAI chat completions.

1. A body becomes a canonical request; fields on no list are left out and listed, bookkeeping is left out and noted.
2. A reply is one ``chat.completion``; usage and ids are always there.
3. A stream says the role once, adds up to the reply's message, has one id, usage only on request, ``[DONE]`` last.
4. A reply that stopped with calls ends with ``tool_calls``; one that was cut with ``length``.
5. Errors are ``{"error": {"message", "type", "code", "param"}}``.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnkeeper.core.tokens import freeze_ids
from turnkeeper.dialects import CHAT, AgentCall, AgentReply, ParseContext, StreamStart, parse_events
from turnkeeper.errors import (
    AuthenticationError,
    CapacityError,
    ContextLengthError,
    EngineError,
    EngineProtocolError,
    RequestError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.jsontypes import JsonObject

CONTEXT = ParseContext(decode_token=lambda token_id: f"<{token_id}>")
START = StreamStart(response_id="chatcmpl-1", created_s=11, prompt_tokens=10)
USER = {"role": "user", "content": "hi"}
CALLS = [
    {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
    {"id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]
FULL = {"role": "assistant", "content": "text", "reasoning_content": "why", "tool_calls": CALLS}


def parse(**fields: Any) -> AgentCall:
    return CHAT.parse_request({"messages": [USER], **fields}, CONTEXT)


def make_reply(message: JsonObject, finish_reason: str = "stop") -> AgentReply:
    return AgentReply(
        response_id="chatcmpl-1",
        created_s=12,
        message=message,
        finish_reason=finish_reason,
        prompt_tokens=10,
        completion_tokens=2,
        cached_tokens=4,
        ids=freeze_ids([7, 8]),
        logprobs=np.array([-0.5, -0.0]),
        meta={"e2e_latency": 0.5},
    )


def read_chunks(stream: bytes) -> list[JsonObject]:
    events = list(parse_events(stream))
    assert events[-1].data == "[DONE]"
    return [json.loads(event.data) for event in events[:-1]]


def assemble(chunks: list[JsonObject]) -> JsonObject:
    """What a client makes of the deltas: strings concatenate, tool calls go by index."""
    message: JsonObject = {"content": ""}
    calls: dict[int, JsonObject] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        delta = dict(choice["delta"])
        for call in delta.pop("tool_calls", ()):
            calls[call.pop("index")] = call
        for key, text in delta.items():
            message[key] = message.get(key, "") + text
    return message | ({"tool_calls": [calls[index] for index in sorted(calls)]} if calls else {})


def test_a_body_becomes_a_canonical_request() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    call = parse(tools=[tool], max_completion_tokens=5, temperature=1, chat_template_kwargs={"k": 1}, x_new=[1])
    assert call.request.messages == (USER,)
    assert call.request.tools == (tool,)
    assert call.request.chat_template_kwargs == {"k": 1}
    assert call.request.sampling == {"max_tokens": 5, "temperature": 1}
    assert (call.request.forwarded, call.request.dropped_fields) == ({}, ("x_new",))
    assert call.request.dialect == "chat"


def test_bookkeeping_is_left_out_and_noted() -> None:
    call = parse(user="me", store=True)
    assert call.request.forwarded == {}
    assert call.request.notes == ("left out store", "left out user")


BAD: dict[str, tuple[JsonObject, str]] = {
    "owned field": ({"input_ids": [1]}, "input_ids"),
    "three choices": ({"n": 3}, "^n is not for agents"),
    "prefill": ({"continue_final_message": True}, "continue_final_message"),
    "stream as text": ({"stream": "yes"}, "stream"),
    "options as list": ({"stream_options": []}, "stream_options"),
    "template arguments as list": ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    "model as number": ({"model": 3}, "model"),
    "logprobs as number": ({"logprobs": 3}, "logprobs"),
    "bad limit": ({"max_tokens": 0}, "max_tokens"),
}


@pytest.mark.parametrize(("fields", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_field_is_refused_by_name(fields: JsonObject, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse(**fields)


def test_a_reply_is_one_completion() -> None:
    body = json.loads(parse(model="m").render_reply(make_reply(FULL, "tool_calls")))
    assert (body["id"], body["object"], body["created"], body["model"]) == ("chatcmpl-1", "chat.completion", 12, "m")
    (choice,) = body["choices"]
    assert choice["message"] == FULL
    assert choice["finish_reason"] == "tool_calls"
    assert choice["logprobs"] is None
    assert body["usage"]["total_tokens"] == 12
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_the_likeliest_tokens_are_listed_beside_each_sampled_one() -> None:
    reply = replace(make_reply(FULL), top_logprobs=(((7, -0.5), (9, -1.5)), ()))
    (first, second) = json.loads(parse(logprobs=True).render_reply(reply))["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"]) for entry in first["top_logprobs"]] == [("<7>", -0.5), ("<9>", -1.5)]
    assert (first["token"], second["token"], second["top_logprobs"]) == ("<7>", "<8>", [])
    assert json.loads(parse().render_reply(reply))["choices"][0]["logprobs"] is None


def test_logprobs_are_listed_for_who_asks() -> None:
    body = json.loads(parse(logprobs=True).render_reply(make_reply(FULL)))
    entries = body["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"]) for entry in entries] == [("<7>", -0.5), ("<8>", 0.0)]


MESSAGES: dict[str, JsonObject] = {
    "text": {"role": "assistant", "content": "text"},
    "nothing": {"role": "assistant", "content": ""},
    "reasoning only": {"role": "assistant", "content": "", "reasoning_content": "why"},
    "calls only": {"role": "assistant", "content": "", "tool_calls": CALLS},
    "everything": FULL,
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
@pytest.mark.parametrize("heartbeats", [0, 1, 3])
def test_a_stream_adds_up_to_the_message(message: JsonObject, heartbeats: int) -> None:
    stream = parse(stream=True).open_stream(START)
    chunks = read_chunks(b"".join(stream.heartbeat() for _ in range(heartbeats)) + stream.finish(make_reply(message)))
    assert assemble(chunks) == message
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}
    assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 1
    end = "tool_calls" if message.get("tool_calls") else "stop"
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == end


ENDS: dict[str, tuple[JsonObject, str, str]] = {
    "calls that stopped": (FULL, "stop", "tool_calls"),
    "calls, as an engine says it": (FULL, "tool_calls", "tool_calls"),
    "calls that were cut": (FULL, "length", "length"),
    "calls that were withheld": (FULL, "content_filter", "content_filter"),
    "text that stopped": (MESSAGES["text"], "stop", "stop"),
    "text that was cut": (MESSAGES["text"], "length", "length"),
    "an engine that speaks of calls that are none": (MESSAGES["text"], "tool_calls", "stop"),
    "no calls in a list": ({**MESSAGES["text"], "tool_calls": []}, "tool_calls", "stop"),
}


@pytest.mark.parametrize(("message", "engine", "agent"), ENDS.values(), ids=ENDS.keys())
def test_a_reply_that_stopped_with_calls_ends_for_its_calls(message: JsonObject, engine: str, agent: str) -> None:
    reply = make_reply(message, engine)
    (choice,) = json.loads(parse().render_reply(reply))["choices"]
    chunks = read_chunks(parse(stream=True).open_stream(START).finish(reply))
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == agent


def test_text_that_went_out_early_is_not_said_again() -> None:
    stream = parse(stream=True).open_stream(START)
    early = stream.extend(reasoning="w", content="") + stream.extend(reasoning="hy", content="te")
    chunks = read_chunks(early + stream.finish(make_reply(FULL)))
    assert assemble(chunks) == FULL
    assert {chunk["created"] for chunk in chunks} == {11}


def test_a_reply_that_contradicts_what_was_streamed_is_refused() -> None:
    stream = parse(stream=True).open_stream(START)
    stream.extend(reasoning="", content="other")
    with pytest.raises(EngineProtocolError):
        stream.finish(make_reply(FULL))


@pytest.mark.parametrize("wanted", [True, False])
def test_usage_is_a_chunk_without_choices_and_only_on_request(wanted: bool) -> None:
    call = parse(stream=True, stream_options={"include_usage": wanted})
    chunks = read_chunks(call.open_stream(START).finish(make_reply(FULL)))
    assert [chunk["choices"] for chunk in chunks if "usage" in chunk] == [[]] * wanted


def test_a_stream_that_fails_ends_with_an_error_and_is_not_done() -> None:
    stream = parse(stream=True).open_stream(START)
    events = list(parse_events(stream.heartbeat() + stream.fail(EngineError("gone"))))
    assert json.loads(events[-1].data)["error"]["code"] == "engine"
    assert all(event.data != "[DONE]" for event in events)


ERRORS: dict[str, tuple[TurnkeeperError, int, str, str]] = {
    "request": (RequestError("x", param="n"), 400, "invalid_request_error", "request"),
    "context": (ContextLengthError("x"), 400, "invalid_request_error", "context_length_exceeded"),
    "key": (AuthenticationError("x"), 401, "authentication_error", "authentication"),
    "session": (SessionNotFoundError("x"), 404, "not_found_error", "session_not_found"),
    "limit": (CapacityError("x"), 429, "rate_limit_error", "capacity"),
    "engine": (EngineError("x"), 502, "server_error", "engine"),
}


@pytest.mark.parametrize(("error", "status", "kind", "code"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_has_the_form_that_clients_know(error: TurnkeeperError, status: int, kind: str, code: str) -> None:
    body = json.loads(CHAT.render_error(error))
    assert CHAT.choose_status(error) == status
    assert body == {"error": {"message": "x", "type": kind, "code": code, "param": error.facts.get("param")}}
