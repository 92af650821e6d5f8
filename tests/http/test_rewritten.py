"""What real clients make of a tool call they were given, over HTTP: no turn is lost to training.

1. The turn that goes on from a rewritten reply extends it; one sample comes out, every sampled token of it trainable.
2. GET and samples say in what the reply came back changed, and show the sampled form.
3. A harness that brings a third form later is seen to fork.
4. Reasoning in tags is the stored reasoning for every family: in `<think>` where the family has no tags of its own.
5. A client of Responses that calls a call by the id of its item has renamed nothing: what it rewrites later is known.
"""

import json
from typing import Any

import pytest

from httpkit import Site, running_site
from rendering.standins import standin
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import FAMILIES
from turnkeeper.samples import decode_samples
from turnkeeper.testing import ScriptedReply

USER: JsonObject = {"role": "user", "content": "rename it"}
EDIT: JsonObject = {"file_path": "a.py", "old_string": "x", "new_string": "y"}

REWRITES: dict[str, tuple[JsonObject, JsonObject, bool, list[str]]] = {
    "a schema's default added": (EDIT, {**EDIT, "replace_all": False}, True, ["keys_added"]),
    "the beginning of a command cut": (
        {"command": "cd /repo && ls"},
        {"command": "ls"},
        True,
        ["values_changed"],
    ),
    "a string read as a boolean": ({"all": "false"}, {"all": False}, True, ["values_retyped"]),
    "a string read as a number": ({"limit": "20"}, {"limit": 20}, True, ["values_retyped"]),
    "nulls of a schema added": ({"a": 1}, {"a": 1, "b": None, "c": []}, True, ["keys_added"]),
    "an empty value left out": ({"a": 1, "note": ""}, {"a": 1}, True, ["keys_removed"]),
    "the text beside the call left out": (EDIT, EDIT, False, ["text_left_out"]),
    "defaults added and the text left out": (EDIT, {**EDIT, "n": 1}, False, ["keys_added", "text_left_out"]),
}


def call_of(call_id: str, arguments: JsonObject) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": "Edit", "arguments": json.dumps(arguments)}}


def replay_chat(reply: JsonObject, arguments: JsonObject, keeps_text: bool) -> list[JsonObject]:
    message = reply["choices"][0]["message"]
    call_id = message["tool_calls"][0]["id"]
    content = message["content"] if keeps_text else None
    said = {"role": "assistant", "content": content, "tool_calls": [call_of(call_id, arguments)]}
    return [USER, said, {"role": "tool", "tool_call_id": call_id, "content": "done"}]


def replay_messages(reply: JsonObject, arguments: JsonObject, keeps_text: bool) -> list[JsonObject]:
    blocks = [block for block in reply["content"] if keeps_text or block["type"] != "text"]
    said = [{**block, "input": arguments} if block["type"] == "tool_use" else block for block in blocks]
    result = {"type": "tool_result", "tool_use_id": said[-1]["id"], "content": "done"}
    return [USER, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]


def replay_responses(reply: JsonObject, arguments: JsonObject, keeps_text: bool) -> list[JsonObject]:
    items = [item for item in reply["output"] if keeps_text or item["type"] != "message"]
    said = [{**item, "arguments": json.dumps(arguments)} if "arguments" in item else item for item in items]
    result = {"type": "function_call_output", "call_id": said[-1]["call_id"], "output": "done"}
    return [USER, *said, result]


DIALECTS: dict[str, tuple[str, JsonObject, Any]] = {
    "chat": ("v1/chat/completions", {}, replay_chat),
    "messages": ("v1/messages", {"max_tokens": 100}, replay_messages),
    "responses": ("v1/responses", {}, replay_responses),
}


async def send(site: Site, session: str, dialect: str, messages: list[JsonObject]) -> JsonObject:
    path, fields, _ = DIALECTS[dialect]
    history = "input" if dialect == "responses" else "messages"
    reply = await site.call("POST", f"{session}/{path}", {history: messages, **fields})
    assert reply.status == 200, reply.body
    return reply.json()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", REWRITES)
async def test_a_rewritten_reply_stays_on_its_path_and_is_trained(name: str, dialect: str) -> None:
    sampled, replayed, keeps_text, kinds = REWRITES[name]
    async with running_site(use_session_server="v2") as site:
        site.engine.script = [ScriptedReply(text="I edit.", tool_calls=[call_of("call_a", sampled)])]
        session = await site.create()
        first = await send(site, session, dialect, [USER])
        await send(site, session, dialect, DIALECTS[dialect][2](first, replayed, keeps_text))
        shown = (await site.call("GET", session)).json()
        batch = decode_samples((await site.call("POST", f"{session}/samples", {})).body)
    turns = shown["metadata"]["turnkeeper"]["turns"]
    assert [turn.get("rewritten", []) for turn in turns] == [kinds, []]
    stored = shown["records"][1]["request"]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(stored) == sampled
    [sample] = batch.samples
    sampled_tokens = sum(
        len(record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]) for record in shown["records"]
    )
    assert int(sample.loss_mask.sum()) == sampled_tokens
    assert [turn.get("rewritten", []) for turn in sample.metadata["turnkeeper"]["turns"]] == [kinds, []]


async def test_a_third_form_is_seen_to_fork() -> None:
    async with running_site(use_session_server="v2") as site:
        site.engine.script = [ScriptedReply(text="", tool_calls=[call_of("call_a", EDIT)])]
        session = await site.create()
        first = await send(site, session, "chat", [USER])
        await send(site, session, "chat", replay_chat(first, {**EDIT, "replace_all": False}, True))
        await send(site, session, "chat", replay_chat(first, {**EDIT, "old_string": "[removed]"}, True))
        shown = (await site.call("GET", session)).json()
    forked = shown["metadata"]["turnkeeper"]["turns"][2]
    assert forked["why"]["cause"] == "rewritten_later"
    assert forked["why"]["would_match"] == "--on-rewritten-calls always"
    assert [node["parent"] for node in shown["metadata"]["tree"]["nodes"]] == [None, 0, None]


@pytest.mark.parametrize("arguments", [EDIT, {**EDIT, "replace_all": False}], ids=["as sampled", "rewritten"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_reasoning_in_tags_is_known_in_every_family(family: str, arguments: JsonObject) -> None:
    async with running_site(use_session_server="v2", renderer=standin(family)) as site:
        call = call_of("call_a", EDIT)
        site.engine.script = [ScriptedReply(text="I edit.", reasoning="why so", tool_calls=[call])]
        session = await site.create()
        first = await send(site, session, "chat", [USER])
        user, reply, result = replay_chat(first, arguments, True)
        dressed = {**reply, "content": "<think>\nwhy so\n</think>\n\nI edit."}
        await send(site, session, "chat", [user, dressed, result])
        nodes = (await site.call("GET", session)).json()["metadata"]["tree"]["nodes"]
    assert [node["parent"] for node in nodes] == [None, 0]


async def test_a_call_that_is_called_by_its_item_is_not_renamed() -> None:
    """LiteLLM does so for ids like ``call_0``, which it takes for ids that replies repeat."""
    async with running_site(use_session_server="v2") as site:
        site.engine.script = [
            ScriptedReply(text="", tool_calls=[call_of(call_id, EDIT)]) for call_id in ("call_0", "call_a")
        ]
        session = await site.create()
        first = await send(site, session, "responses", [USER])
        item, result = replay_responses(first, EDIT, True)[-2:]
        history = [USER, {**item, "call_id": item["id"]}, {**result, "call_id": item["id"]}]
        second = await send(site, session, "responses", history)
        rewritten = replay_responses(second, {**EDIT, "replace_all": False}, True)[1:]
        await send(site, session, "responses", [*history, *rewritten])
        metadata = (await site.call("GET", session)).json()["metadata"]
    turns = metadata["turnkeeper"]["turns"]
    assert [turn.get("rewritten", []) for turn in turns] == [[], ["keys_added"], []]
    assert [node["parent"] for node in metadata["tree"]["nodes"]] == [None, 0, 1]
