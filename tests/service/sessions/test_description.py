"""``GET /sessions/{id}``: what is in flight, what recorded turns took, and every branch.

1. Turns in flight are shown with their phase, what they ask and who waits; once recorded they are turns with times.
2. With branches, every turn holds what it added, so that the path of any turn can be put together from it.
3. Callers without an admin key get no address of an engine.
4. Nothing of it is in the metadata of samples, which repeat byte for byte.
"""

from typing import Any

import orjson

from servicekit import ENGINE_URL, Kit, assistant, build_kit, user
from turnkeeper.ids import TurnId
from turnkeeper.samples import decode_samples

HISTORY = [user("hi"), assistant("one"), user("more")]


async def describe(kit: Kit, session_id: str, **options: Any) -> dict[str, Any]:
    """The ``turnkeeper`` object of the metadata."""
    return orjson.loads(await kit.service.describe(session_id, **options))["metadata"]["turnkeeper"]


async def test_a_turn_in_flight_is_shown_and_then_a_turn_with_times() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("hi")], "one")
    turn = await kit.begin(session_id, HISTORY, headers={"x-claude-code-agent-id": "sub"}, model="m")
    await kit.clock.advance(4.0)
    (shown,) = (await describe(kit, session_id))["in_flight"]
    prompt_tokens = len(kit.engine.waiting[0].request.prompt_ids)
    assert shown == {
        "number": 1,
        "phase": "engine",
        "age_s": 4.0,
        "phase_age_s": 4.0,
        "engine": ENGINE_URL,
        "parent": 0,
        "response_id": turn.waiter.response_id,
        "dialect": "chat",
        "model": "m",
        "agent": "sub",
        "added_messages": 1,
        "prompt_tokens": prompt_tokens,
        "engine_calls": 1,
        "clients": 1,
        "times": {"rendering_s": 0.0, "gate_s": 0.0, "engine_s": 4.0, "held_s": 0.0, "recording_s": 0.0},
    }
    kit.engine.answer(text="two")
    await turn.text()
    own = await describe(kit, session_id)
    assert own["in_flight"] == []
    recorded = own["turns"][1]
    assert (recorded["times"]["engine_s"], recorded["engine"], recorded["engine_calls"]) == (4.0, ENGINE_URL, 1)


async def test_a_turn_whose_client_left_has_no_client() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("hi")])
    await turn.hang_up()
    (shown,) = (await describe(kit, session_id))["in_flight"]
    assert (shown["parent"], shown["clients"]) == (None, 0)


async def test_every_path_can_be_put_together_from_the_branches() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    await kit.say(session_id, [user("hi")], "one")
    await kit.say(session_id, HISTORY, "two")
    await kit.say(session_id, [*HISTORY[:2], user("other")], "three")
    await kit.say(session_id, [user("a root")], "four")
    turns = (await describe(kit, session_id, with_branches=True))["turns"]
    forest = kit.look(session_id).forest
    paths: dict[int | None, list[int]] = {None: []}
    told: dict[int | None, list[Any]] = {None: []}
    for turn in turns:
        above = paths[turn["parent"]]
        paths[turn["id"]] = above[: len(above) - turn["trim"]] + turn["prompt_ids"] + turn["completion_ids"]
        told[turn["id"]] = [*told[turn["parent"]], *turn["messages"], turn["message"]]
        assert paths[turn["id"]] == forest.path_ids(TurnId(turn["id"])).tolist()
        assert told[turn["id"]] == list(forest.path_messages(TurnId(turn["id"])))
        assert len(turn["logprobs"]) == len(turn["completion_ids"]) == turn["completion_tokens"]
        assert turn["versions"] == [{"version": "v0", "start": 0, "end": turn["completion_tokens"]}]
    assert len(turns) == 4
    assert [turn["parent"] for turn in turns] == [None, 0, 0, None]
    assert "prompt_ids" not in (await describe(kit, session_id))["turns"][0]


async def test_others_than_the_admin_get_no_address() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("hi")], "one")
    await kit.begin(session_id, HISTORY)
    body = await kit.service.describe(session_id, is_admin=False, with_branches=True)
    own = orjson.loads(body)["metadata"]["turnkeeper"]
    assert (own["turns"][0]["engine"], own["in_flight"][0]["engine"]) == (None, None)
    assert ENGINE_URL.encode() not in body
    assert ENGINE_URL.encode() in await kit.service.describe(session_id)


async def test_samples_hold_nothing_that_changes_with_time() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("hi")], "one")
    before = (await kit.service.collect(session_id)).to_bytes()
    turn = await kit.begin(session_id, HISTORY)
    await kit.clock.advance(3.0)
    assert (await kit.service.collect(session_id)).to_bytes() == before
    own = decode_samples(before).session_metadata["turnkeeper"]
    assert "in_flight" not in own
    assert "times" not in own["turns"][0]
    kit.engine.answer()
    await turn.text()
