"""Where turnkeeper deliberately differs from the trainer's own session server, each difference with its test.

1. Extending a turn that ended by length is a 400, not a 409: clients repeat a 409 for ever.
2. DELETE answers at once, however long a chat takes.
3. A retry that fails destroys nothing: history moves when a turn is recorded, not when it is asked for.
4. Of two overlapping requests both are recorded; none is answered without a record.
5. A reply that the engine aborted is not recorded.
6. Clients that spell a tool call's arguments their own way go on from the same turn, unless told otherwise.
7. Bodies that are lists, replies without choices, NaN and lone surrogates have their status; none is a 500.
8. A route that would generate without a record is refused.
9. Call ids are unique along a session, whatever the engine gives.
10. Errors of a dialect are objects with a code, whatever went wrong.
11. A stream has several chunks, and only its last choice says why it ended.
12. Counts that contradict the tokens of a reply are a 502, and nothing is recorded.
13. Tokens and log-probabilities of a reply stand in the records, not in the reply's ``meta_info``.
14. A developer message may stand behind a reply.
15. Records are made from what is stored of a turn: tool calls have no index of the engine's.
16. What the server knows of a session stands in its metadata, under one key of its own.

That rows of decoding stay what sampled their tokens under ``retract`` is shown with the rows.
"""

import asyncio
import json

from httpkit import running_site
from servicekit import assistant, user
from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing import ScriptedEngine, ScriptedReply


async def test_extending_a_truncated_turn_is_a_400() -> None:
    cut = ScriptedReply(text="half a", finish_reason="length")
    async with running_site(ScriptedEngine([cut]), use_session_server="v2") as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        refused = await site.chat(session, [user("a"), assistant("half a"), user("go on")])
        assert (refused.status, refused.json()["error"]["code"]) == (400, "truncated_turn")
        assert refused.headers["x-should-retry"] == "false"


async def test_deleting_does_not_wait_for_a_chat() -> None:
    engine = ScriptedEngine([ScriptedReply(wait=asyncio.Event())])
    async with running_site(engine) as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")]))
        await engine.wait_for_generations(1)
        assert (await site.call("DELETE", session)).status == 204
        assert (await turn).status == 404


async def test_a_retry_that_fails_destroys_nothing() -> None:
    engine = ScriptedEngine()
    async with running_site(engine) as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        history = [user("a"), assistant("reply 1"), user("b")]
        await site.chat(session, history)
        forbidden = await site.chat(session, history, input_ids=[1])
        assert forbidden.status == 400
        engine.script.append(ScriptedReply(status=500))
        assert (await site.chat(session, history)).status == 502
        assert len((await site.call("GET", session)).json()["records"]) == 2


async def test_both_of_two_overlapping_requests_are_recorded() -> None:
    gates = [asyncio.Event(), asyncio.Event()]
    engine = ScriptedEngine([ScriptedReply(text=text, wait=gate) for text, gate in zip("AB", gates, strict=True)])
    async with running_site(engine) as site:
        session = await site.create()
        turns = []
        for seed in (1, 2):
            turns.append(asyncio.create_task(site.chat(session, [user("u")], seed=seed)))
            await engine.wait_for_generations(seed)
        gates[1].set()
        assert (await turns[1]).status == 200
        gates[0].set()
        assert (await turns[0]).status == 200
        for reply in "AB":
            assert (await site.chat(session, [user("u"), assistant(reply), user("more")])).status == 200
        entry = site.find_entry(session.removeprefix("/sessions/"))
        assert [turn.parent for turn in entry.session.forest.turns] == [None, None, 1, 0]


async def test_an_aborted_reply_is_not_recorded() -> None:
    aborted = ScriptedReply(finish_reason="abort", ids=(10, 11), text="")
    async with running_site(ScriptedEngine([aborted]), abort_grace=0) as site:
        session = await site.create()
        ended = await site.chat(session, [user("a")])
        assert (ended.status, ended.headers["x-should-retry"]) == (503, "false")
        assert (await site.call("GET", session)).json()["records"] == []


def call_tool(arguments: str) -> JsonObject:
    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


async def test_arguments_may_be_spelled_another_way() -> None:
    sampled = call_tool('{"n":1.0,"path":"a"}')
    engine = ScriptedEngine([ScriptedReply(text="", tool_calls=sampled["tool_calls"], finish_reason="tool_calls")])
    async with running_site(engine) as site:
        session = await site.create()
        assert (await site.chat(session, [user("a")])).status == 200
        result = {"role": "tool", "tool_call_id": "c0", "content": "ok"}
        replayed = [user("a"), call_tool('{"path": "a", "n": 1}'), result]
        assert (await site.chat(session, replayed)).status == 200
        entry = site.find_entry(session.removeprefix("/sessions/"))
        assert [turn.parent for turn in entry.session.forest.turns] == [None, 0]
        told = entry.session.forest.turns[0].completion.message["tool_calls"][0]["function"]["arguments"]
        assert told == '{"n":1.0,"path":"a"}', "the stored spelling stays"


async def test_odd_bodies_and_replies_are_never_a_500() -> None:
    no_choices = ScriptedReply(edit=lambda reply: reply.update(choices=[]))
    async with running_site(ScriptedEngine([no_choices, ScriptedReply(text="x")])) as site:
        session = await site.create()
        chat = f"{session}/v1/chat/completions"
        assert (await site.call("POST", chat, b"[]")).status == 400
        assert (await site.call("POST", chat, b'{"messages": [], "temperature": NaN}')).status == 400
        assert (await site.chat(session, [user("a")])).status == 502
        lone = b'{"messages": [{"role": "user", "content": "a\\ud83d b"}]}'
        assert (await site.call("POST", chat, lone)).status == 200
        entry = site.find_entry(session.removeprefix("/sessions/"))
        assert entry.session.forest.turns[0].messages == (user("a\ufffd b"),)
        again = b'{"messages": [{"role": "user", "content": "a\\ud83d b"}, {"role": "assistant", "content": "x"},'
        again += b' {"role": "user", "content": "b"}]}'
        assert (await site.call("POST", chat, again)).status == 200
        assert entry.session.forest.turns[1].parent == 0


async def test_generation_without_a_record_is_refused() -> None:
    async with running_site() as site:
        session = await site.create()
        refused = await site.call("POST", f"{session}/v1/completions", {"prompt": "a"})
        assert (refused.status, refused.json()["code"]) == (400, "unrecorded_generation")


async def test_call_ids_that_an_engine_repeats_are_new_to_the_agent() -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    async with running_site(ScriptedEngine(default=ScriptedReply(tool_calls=[call])), use_session_server="v2") as site:
        session = await site.create()
        replies = [await site.chat(session, [user(text)]) for text in "ab"]
    ids = [reply.json()["choices"][0]["message"]["tool_calls"][0]["id"] for reply in replies]
    assert ids[0] == "call_0"
    assert len(set(ids)) == 2


async def test_errors_of_a_dialect_are_objects_with_a_code() -> None:
    no_message = ScriptedReply(edit=lambda reply: reply["choices"][0].update(message=None))
    async with running_site(ScriptedEngine([no_message, ScriptedReply(status=400)])) as site:
        session = await site.create()
        chat = f"{session}/v1/chat/completions"
        bad_json = await site.call("POST", chat, b"{not json")
        unknown = await site.chat("/sessions/nonexistent", [user("a")])
        unread = await site.chat(session, [user("a")])
        refused = await site.chat(session, [user("a")])
        assert [reply.status for reply in (bad_json, unknown, unread, refused)] == [400, 404, 502, 400]
        for reply in (bad_json, unknown, unread, refused):
            error = reply.json()["error"]
            assert error["message"]
            assert error["code"]
        assert (await site.call("GET", session)).json()["records"] == []


async def test_only_the_last_choice_of_a_stream_says_why_it_ended() -> None:
    async with running_site(ScriptedEngine([ScriptedReply(text="one two three")])) as site:
        streamed = await site.chat(await site.create(), [user("a")], stream=True)
    events = [line.removeprefix("data: ") for line in streamed.body.decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert len(choices) > 1
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


async def test_counts_that_contradict_the_tokens_of_a_reply_are_a_502() -> None:
    contradicting = ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].update(completion_tokens=7000))
    async with running_site(ScriptedEngine([contradicting])) as site:
        session = await site.create()
        assert (await site.chat(session, [user("a")])).status == 502
        assert (await site.call("GET", session)).json()["records"] == []


async def test_a_developer_message_may_stand_behind_a_reply() -> None:
    async with running_site(ScriptedEngine(), tito_model="qwen3") as site:
        session = await site.create()
        assert (await site.chat(session, [user("a")])).status == 200
        told = [user("a"), assistant("reply 1"), {"role": "developer", "content": "be brief"}]
        assert (await site.chat(session, told)).status == 200
        entry = site.find_entry(session.removeprefix("/sessions/"))
        assert [turn.parent for turn in entry.session.forest.turns] == [None, 0]


async def test_tokens_of_a_reply_stand_in_the_records() -> None:
    async with running_site(ScriptedEngine()) as site:
        session = await site.create()
        reply = await site.chat(session, [user("a")], return_logprob=True)
        (record,) = (await site.call("GET", session)).json()["records"]
    assert "output_token_logprobs" not in reply.json()["choices"][0]["meta_info"]
    assert record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]


async def test_a_record_is_made_from_what_is_stored() -> None:
    call = {"id": "call_1", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    engine = ScriptedEngine([ScriptedReply(text="", tool_calls=[call], finish_reason="tool_calls")])
    async with running_site(engine) as site:
        session = await site.create()
        assert (await site.chat(session, [user("a")])).status == 200
        (record,) = (await site.call("GET", session)).json()["records"]
    (stored,) = record["response"]["choices"][0]["message"]["tool_calls"]
    assert stored == {key: value for key, value in call.items() if key != "index"}


async def test_what_the_server_knows_stands_under_one_key() -> None:
    for version, keys in (("v1", set[str]()), ("v2", {"tree"})):
        async with running_site(ScriptedEngine(), use_session_server=version) as site:
            session = await site.create()
            assert (await site.chat(session, [user("a")])).status == 200
            metadata = (await site.call("GET", session)).json()["metadata"]
        theirs = {"accumulated_token_ids", "max_trim_tokens", "tito_session_mismatch"}
        assert set(metadata) == {*theirs, *keys, "turnkeeper"}
