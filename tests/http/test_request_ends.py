"""How a request may end, and how a reply says that it ended, in every dialect.

1. A request that ends with an assistant message asks nothing: 400 ``assistant_last``, streamed or counted too; one that
   ends with the session's own reply says so. The session stays as it was, and the engine is not asked.
2. A reply that stopped with tool calls ends for its calls, one that was cut for its length; records and samples keep
   the engine's word.
"""

from typing import Any

import pytest

from httpkit import Site, running_site
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import SampleStatus, decode_samples
from turnkeeper.testing import ScriptedEngine, ScriptedReply

USER: JsonObject = {"role": "user", "content": "hi"}
OWN: JsonObject = {"role": "assistant", "content": "reply 1"}
CALL: JsonObject = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ITEM: JsonObject = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
REASONING: JsonObject = {"type": "reasoning", "id": "rs_x", "summary": [{"type": "summary_text", "text": "why"}]}
PATHS = {"chat": "v1/chat/completions", "messages": "v1/messages", "responses": "v1/responses"}
FIELDS: dict[str, JsonObject] = {"chat": {}, "messages": {"max_tokens": 50}, "responses": {}}


def said(content: Any, **members: Any) -> JsonObject:
    return {"role": "assistant", "content": content, **members}


TEXT: JsonObject = {"type": "text", "text": "reply 1"}
USE: JsonObject = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
CUSTOM: JsonObject = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
RESULT: JsonObject = {"type": "function_call_output", "call_id": "c", "output": "r"}

ENDS: dict[str, tuple[str, list[JsonObject], bool]] = {
    "chat, its own": ("chat", [USER, OWN], True),
    "chat, its own in parts": ("chat", [USER, said([TEXT])], True),
    "chat, another": ("chat", [USER, said("I")], False),
    "chat, empty": ("chat", [USER, said("")], False),
    "chat, null": ("chat", [USER, said(None)], False),
    "chat, calls": ("chat", [USER, said(None, tool_calls=[CALL])], False),
    "chat, alone": ("chat", [OWN], False),
    "chat, behind its own": ("chat", [USER, OWN, said("and")], False),
    "messages, its own": ("messages", [USER, OWN], True),
    "messages, its own in blocks": ("messages", [USER, said([TEXT])], True),
    "messages, a prefill": ("messages", [USER, said("{")], False),
    "messages, calls": ("messages", [USER, said([USE])], False),
    "messages, thinking": ("messages", [USER, said([{"type": "thinking", "thinking": "t", "signature": ""}])], False),
    "responses, its own": ("responses", [USER, OWN], True),
    "responses, its own item": ("responses", [USER, said([{**TEXT, "type": "output_text"}], type="message")], True),
    "responses, another": ("responses", [USER, said("I")], False),
    "responses, reasoning": ("responses", [USER, REASONING], False),
    "responses, a call": ("responses", [USER, ITEM], False),
    "responses, a custom call": ("responses", [USER, CUSTOM], False),
    "responses, a call behind its result": ("responses", [USER, ITEM, RESULT, ITEM], False),
}
COUNTS = {"messages": ["v1/messages/count_tokens"], "responses": ["v1/responses/input_tokens"]}


def body(dialect: str, messages: list[JsonObject], **fields: Any) -> JsonObject:
    return {"input" if dialect == "responses" else "messages": messages, **FIELDS[dialect], **fields}


async def open_with_one_turn(site: Site, dialect: str) -> str:
    session = await site.create()
    assert (await site.call("POST", f"{session}/{PATHS[dialect]}", body(dialect, [USER]))).status == 200
    return session


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_request_that_ends_with_an_assistant_message_is_refused_in_every_dialect(version: str) -> None:
    async with running_site(use_session_server=version) as site:
        for name, (dialect, messages, is_own) in ENDS.items():
            site.engine.script = [ScriptedReply(text="reply 1")]
            session = await open_with_one_turn(site, dialect)
            asked = len(site.engine.generations)
            paths: list[tuple[str, JsonObject]] = [(PATHS[dialect], {}), (PATHS[dialect], {"stream": True})]
            paths += [(path, {}) for path in COUNTS.get(dialect, [])]
            for path, fields in paths:
                refused = await site.call("POST", f"{session}/{path}", body(dialect, messages, **fields))
                error = refused.json()["error"]
                assert (refused.status, error["code"]) == (400, "assistant_last"), (name, path)
                assert ("the session's own last reply (turn 0)" in error["message"]) == is_own, (name, error)
                assert refused.headers["x-should-retry"] == "false"
            assert len(site.engine.generations) == asked
            assert len((await site.call("GET", session)).json()["records"]) == 1


REPLIES: dict[str, tuple[ScriptedReply, str, dict[str, Any], SampleStatus]] = {
    "stopped with calls": (
        ScriptedReply(text="", tool_calls=[CALL], finish_reason="stop"),
        "stop",
        {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"},
        SampleStatus.COMPLETED,
    ),
    "called": (
        ScriptedReply(text="", tool_calls=[CALL], finish_reason="tool_calls"),
        "tool_calls",
        {"chat": "tool_calls", "messages": "tool_use", "responses": "completed"},
        SampleStatus.COMPLETED,
    ),
    "cut with calls": (
        ScriptedReply(text="", tool_calls=[CALL], finish_reason="length"),
        "length",
        {"chat": "length", "messages": "max_tokens", "responses": "incomplete"},
        SampleStatus.TRUNCATED,
    ),
    "cut": (
        ScriptedReply(text="half", finish_reason="length"),
        "length",
        {"chat": "length", "messages": "max_tokens", "responses": "incomplete"},
        SampleStatus.TRUNCATED,
    ),
    "stopped": (
        ScriptedReply(text="all", finish_reason="stop"),
        "stop",
        {"chat": "stop", "messages": "end_turn", "responses": "completed"},
        SampleStatus.COMPLETED,
    ),
}


def read_end(dialect: str, reply: JsonObject) -> str:
    match dialect:
        case "chat":
            return reply["choices"][0]["finish_reason"]
        case "messages":
            return reply["stop_reason"]
        case _:
            return reply["status"]


@pytest.mark.parametrize("name", REPLIES)
async def test_an_agent_reads_why_a_reply_ended_and_the_record_keeps_the_engines_word(name: str) -> None:
    scripted, word, told, status = REPLIES[name]
    for dialect in PATHS:
        async with running_site(ScriptedEngine([scripted]), use_session_server="v2") as site:
            session = await site.create()
            reply = await site.call("POST", f"{session}/{PATHS[dialect]}", body(dialect, [USER]))
            assert read_end(dialect, reply.json()) == told[dialect], dialect
            (record,) = (await site.call("GET", session)).json()["records"]
            assert record["response"]["choices"][0]["finish_reason"] == word
            (sample,) = decode_samples((await site.call("POST", f"{session}/samples", {})).body).samples
            assert sample.status is status
