"""Call ids, from an engine's reply to what the engine is told next.

1. Agents get ids that nothing else in the session has, whatever engines give; engines are told their own.
2. Two turns in flight never show one id, also where a reply is held for an agent that hung up.
3. A reply that is joined or replayed shows the ids that it showed first.
4. Records show what the agent saw; the turn's metadata says which sampled ids stand behind new ones.
"""

import json
from typing import Any

import pytest

from servicekit import Kit, assistant, build_kit, user
from turnkeeper.errors import EngineError
from turnkeeper.jsontypes import JsonObject

ROUNDS = 3


def calling(*ids: str) -> JsonObject:
    function = {"name": "look", "arguments": '{"at": 1}'}
    return {**assistant(""), "tool_calls": [{"id": each, "type": "function", "function": function} for each in ids]}


def answer(message: JsonObject) -> list[JsonObject]:
    return [
        {"role": "tool", "tool_call_id": each["id"], "content": f"result {place}"}
        for place, each in enumerate(message["tool_calls"])
    ]


def read_message(body: JsonObject) -> JsonObject:
    return body["choices"][0]["message"]


def list_ids(*messages: JsonObject) -> list[str]:
    return [each["id"] for message in messages for each in message.get("tool_calls") or ()]


def list_answered(messages: Any) -> list[str]:
    return [message["tool_call_id"] for message in messages if message["role"] == "tool"]


async def play(kit: Kit, session_id: str, given: tuple[str, ...]) -> list[JsonObject]:
    """An agent that calls tools in some turns; its history."""
    said: list[JsonObject] = [user("u")]
    for _ in range(ROUNDS):
        turn = await kit.begin(session_id, said)
        kit.engine.answer(message=calling(*given))
        message = read_message(await turn.read())
        said += [message, *answer(message)]
    await kit.say(session_id, said)
    return said


@pytest.mark.parametrize("matcher", ["strict", "loose_tool_call", "tolerant", "role_content_only"])
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param(("call_0",), ("call_0",), id="one in every reply"),
        pytest.param(("functions.look:0", "functions.look:1"), ("functions.look:0", "functions.look:1"), id="kimi"),
        pytest.param(("a", "a"), ("a", "a"), id="one twice"),
        pytest.param(("",), None, id="none"),
    ],
)
async def test_agents_get_new_ids_and_engines_are_told_their_own(
    version: str, matcher: str, given: tuple[str, ...], told: tuple[str, ...] | None
) -> None:
    kit = build_kit(use_session_server=version, session_message_matcher=matcher)
    session_id = kit.create()
    said = await play(kit, session_id, given)
    shown = list_ids(*said)
    assert len(set(shown)) == len(shown) == ROUNDS * len(given)
    assert [turn.parent for turn in kit.look(session_id).forest.turns] == [None, *range(ROUNDS)]
    sent = kit.engine.calls[-1].request.messages
    expected = shown if told is None else list(told) * ROUNDS
    assert list_ids(*sent) == list_answered(sent) == expected


async def test_turns_in_flight_show_different_ids() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    turns = [await kit.begin(session_id, [user(text)]) for text in "abc"]
    for index in (2, 1, 0):
        kit.engine.answer(index, message=calling("call_0"))
    ids = [list_ids(read_message(await turn.read())) for turn in turns]
    assert ids[2] == ["call_0"]
    assert len({each for (each,) in ids}) == 3


async def test_a_held_reply_keeps_its_ids_until_it_is_given_up() -> None:
    kit = build_kit(use_session_server="v2", reconnect_grace=2)
    session_id = kit.create()
    first, second = [await kit.begin(session_id, [user(text)]) for text in "ab"]
    await first.hang_up()
    kit.engine.answer(message=calling("call_0"))
    kit.engine.answer(message=calling("call_0"))
    assert list_ids(read_message(await second.read())) != ["call_0"]
    again = await kit.begin(session_id, [user("a")], retry=1)
    assert list_ids(read_message(await again.read())) == ["call_0"]

    third = await kit.begin(session_id, [user("c")])
    await third.hang_up()
    kit.engine.answer(message=calling("call_1"))
    await kit.clock.advance(2)
    fourth = await kit.begin(session_id, [user("d")])
    kit.engine.answer(message=calling("call_1"))
    assert list_ids(read_message(await fourth.read())) == ["call_1"]


async def test_a_failed_turn_holds_no_ids() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a"), calling("call_0"), *answer(calling("call_0"))])
    assert kit.look(session_id).has_call_id("call_0")
    kit.engine.fail(EngineError("broke off", url="http://engine"))
    with pytest.raises(EngineError):
        await turn.read()
    assert not kit.look(session_id).has_call_id("call_0")


@pytest.mark.parametrize("is_stream_first", [True, False])
async def test_a_joined_and_a_replayed_reply_show_the_ids_again(is_stream_first: bool) -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    await kit.say(session_id, [user("u"), calling("call_0"), *answer(calling("call_0"))])
    first = await kit.begin(session_id, [user("a")], stream=is_stream_first)
    joined = await kit.begin(session_id, [user("a")], retry=1)
    kit.engine.answer(message=calling("call_0", ""))
    body = await first.waiting
    ids = list_ids(read_message(await joined.read()))
    assert "call_0" not in ids
    assert all(json.dumps(each).encode() in body for each in ids)
    replayed = await kit.begin(session_id, [user("a")], retry=1)
    assert list_ids(read_message(await replayed.read())) == ids
    assert len(kit.engine.calls) == 2


async def test_records_show_what_the_agent_saw() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    said = await play(kit, session_id, ("call_0", "call_0"))
    shown = json.loads(await kit.service.describe(session_id))
    *calls, last = shown["records"]
    assert list_ids(*(read_message(record["response"]) for record in calls)) == list_ids(*said)
    assert list_ids(*last["request"]["messages"]) == list_ids(*said)
    assert list_answered(last["request"]["messages"]) == list_ids(*said)
    turns = shown["metadata"]["turnkeeper"]["turns"]
    sampled = [turn.get("sampled_call_ids", {}) for turn in turns]
    new = [each for each in list_ids(*said) if each != "call_0"]
    assert [name for each in sampled for name in each] == new
    assert {given for each in sampled for given in each.values()} == {"call_0"}
