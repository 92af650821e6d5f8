"""Turns that go on from a rewritten reply, through the service.

1. Each is counted by kind and logged; the engine is told the sampled form.
2. A retry of such a request is recognised: in flight, and after its end.
3. Requests in flight at one time each keep the form that they bring.
4. `--on-rewritten-calls` and the family's thinking tags reach the matcher.
"""

import json
import logging
import re

import pytest

from servicekit import Kit, build_kit, user
from turnkeeper.jsontypes import JsonObject

SAMPLED: JsonObject = {"path": "a"}
ADDED: JsonObject = {"path": "a", "all": False}
OTHER: JsonObject = {"path": "a", "all": True}


def reply(arguments: JsonObject, content: str | None = "I look.") -> JsonObject:
    function = {"name": "look", "arguments": json.dumps(arguments)}
    calls = [{"id": "call_a", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def go_on(arguments: JsonObject, result: str = "r", content: str | None = "I look.") -> list[JsonObject]:
    return [user("u"), reply(arguments, content), {"role": "tool", "tool_call_id": "call_a", "content": result}]


async def open_session(kit: Kit) -> str:
    """A session of one turn, whose reply holds a call."""
    session_id = kit.create()
    first = await kit.begin(session_id, [user("u")])
    kit.engine.answer(message={**reply(SAMPLED), "reasoning_content": "why"}, finish_reason="tool_calls")
    await first.read()
    return session_id


def parents(kit: Kit, session_id: str) -> list[int | None]:
    return [turn.parent for turn in kit.look(session_id).forest.turns]


async def test_a_rewritten_reply_is_counted_and_logged_and_the_engine_is_told_what_was_sampled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kit = build_kit()
    session_id = await open_session(kit)
    with caplog.at_level(logging.INFO, logger="turnkeeper.turns"):
        await kit.say(session_id, go_on(ADDED, content=None))
    assert json.loads(kit.engine.calls[-1].request.messages[1]["tool_calls"][0]["function"]["arguments"]) == SAMPLED
    assert caplog.messages == [f"reply_rewritten session={session_id} turn=0 kinds=keys_added,text_left_out"]
    shown = kit.backend.metrics.render().decode()
    for kind in ("keys_added", "text_left_out"):
        assert f'turnkeeper_rewritten_replies_total{{kind="{kind}"}} 1.0' in shown
    assert 'kind="values_changed"} 0.0' in shown


async def test_a_reply_that_comes_back_as_it_was_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    kit = build_kit()
    session_id = await open_session(kit)
    with caplog.at_level(logging.INFO, logger="turnkeeper.turns"):
        await kit.say(session_id, go_on(SAMPLED))
    assert caplog.messages == []
    shown = re.findall(
        r"^turnkeeper_rewritten_replies_total\{.* (\S+)$", kit.backend.metrics.render().decode(), re.MULTILINE
    )
    assert {*shown} == {"0.0"}


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_retry_joins_the_call_in_flight_and_gets_the_stored_reply_later(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = await open_session(kit)
    first = await kit.begin(session_id, go_on(ADDED))
    second = await kit.begin(session_id, go_on(ADDED), retry=1)
    kit.engine.answer(text="done")
    assert (await first.read())["id"] == (await second.read())["id"]
    assert await kit.say(session_id, go_on(ADDED), retry=1) == "done"
    assert (parents(kit, session_id), len(kit.engine.calls)) == ([None, 0], 2)


async def test_requests_in_flight_at_one_time_keep_each_its_form() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = await open_session(kit)
    flights = [await kit.begin(session_id, go_on(arguments, json.dumps(arguments))) for arguments in (ADDED, OTHER)]
    for flight in flights:
        kit.engine.answer(text="done")
        assert await flight.text() == "done"
    for arguments, parent in ((ADDED, 1), (OTHER, 2)):
        history = [*go_on(arguments, json.dumps(arguments)), {"role": "assistant", "content": "done"}, user("v")]
        await kit.say(session_id, history)
        assert parents(kit, session_id)[-1] == parent
    await kit.say(session_id, go_on({"path": "b"}))
    assert parents(kit, session_id) == [None, 0, 0, 1, 2, None]


@pytest.mark.parametrize(("choice", "expected"), [("first", [None, 0, None]), ("always", [None, 0, 0])])
async def test_the_option_reaches_the_matcher(choice: str, expected: list[int | None]) -> None:
    kit = build_kit(use_session_server="v2", on_rewritten_calls=choice)
    session_id = await open_session(kit)
    for arguments in (ADDED, OTHER):
        await kit.say(session_id, go_on(arguments, json.dumps(arguments)))
    assert parents(kit, session_id) == expected


async def test_under_fork_a_rewritten_reply_is_another_one() -> None:
    kit = build_kit(use_session_server="v2", on_rewritten_calls="fork")
    session_id = await open_session(kit)
    await kit.say(session_id, go_on(ADDED))
    assert parents(kit, session_id) == [None, None]


@pytest.mark.parametrize("arguments", [SAMPLED, ADDED], ids=["as sampled", "rewritten"])
async def test_the_familys_thinking_tags_reach_the_matcher(arguments: JsonObject) -> None:
    kit = build_kit(use_session_server="v2")
    session_id = await open_session(kit)
    await kit.say(session_id, go_on(arguments, content="<think>\nwhy\n</think>\n\nI look."))
    assert parents(kit, session_id) == [None, 0]
    await kit.say(session_id, go_on(arguments, content="<think>\nbecause\n</think>\n\nI look."))
    assert parents(kit, session_id) == [None, 0, None]
