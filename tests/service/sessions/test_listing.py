"""The list of sessions.

1. A row says what its session is, how old and how long idle it is, and what each of its turns in flight waits for.
2. Filters leave out what does not fit; a turn must fit phase and age at once.
3. Every order is total: pages of any size, put together, are the whole list, once each; a cursor of another order is
   refused, and sessions that come or go between pages move no other.
4. A row is bounded, whatever its session holds; other tasks run while a long list is made.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit import ENGINE_URL, Kit, build_kit, user
from turnkeeper.choices import PauseMode
from turnkeeper.errors import RequestError
from turnkeeper.service.sessions import ListOrder, SessionQuery, SessionStatus
from turnkeeper.service.sessions.listing import (
    DESCRIBED_AT_ONCE,
    LOOKED_AT_ONCE,
    MAX_ROW_METADATA_BYTES,
    MAX_ROW_TURNS,
)
from turnkeeper.telemetry import TurnPhase

ASK = [user("hi")]


async def list_ids(kit: Kit, **conditions: Any) -> list[str]:
    rows = (await kit.service.list_sessions(SessionQuery(**conditions)))["sessions"]
    return [row["session_id"] for row in rows]


async def test_a_row_says_what_its_session_is_and_waits_for() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create(metadata={"task": 7})
    await kit.clock.advance(2.0)
    await kit.say(session_id, ASK)
    await kit.clock.advance(3.0)
    first = await kit.begin(session_id, [user("a")])
    await kit.clock.advance(4.0)
    await kit.begin(session_id, [user("b")])
    await kit.clock.advance(1.0)
    (row,) = (await kit.service.list_sessions())["sessions"]
    created_at = kit.find_entry(session_id).created_at
    phase = {"phase": "engine", "engine": ENGINE_URL}
    assert row == {
        "session_id": session_id,
        "state": "open",
        "closed": None,
        "history": "tree",
        "created_at": created_at,
        "last_request_at": created_at + 9.0,
        "age_s": 10.0,
        "idle_s": 0.0,
        "turns": 1,
        "bytes": kit.find_entry(session_id).size_bytes,
        "in_flight": 2,
        "in_flight_turns": [
            {"number": 1, **phase, "age_s": 5.0, "phase_age_s": 5.0},
            {"number": 2, **phase, "age_s": 1.0, "phase_age_s": 1.0},
        ],
        "metadata": {"task": 7},
    }
    kit.engine.answer()
    kit.engine.answer()
    await first.text()
    await kit.clock.advance(6.0)
    (row,) = (await kit.service.list_sessions())["sessions"]
    assert (row["in_flight"], row["in_flight_turns"], row["idle_s"]) == (0, [], 6.0)


async def test_a_turn_at_the_gate_and_a_held_one_say_so() -> None:
    kit = build_kit()
    paused, held = kit.create(), kit.create()
    turn = await kit.begin(held, ASK)
    await turn.hang_up()
    kit.engine.answer()
    await kit.clock.advance(0.1)
    await kit.backend.control.pause(PauseMode.ABORT, forward=False)
    await kit.begin(paused, ASK)
    await kit.clock.advance(0.2)
    rows = {row["session_id"]: row["in_flight_turns"] for row in (await kit.service.list_sessions())["sessions"]}
    assert [(turn["phase"], turn["phase_age_s"], turn["engine"]) for turn in rows[paused]] == [("gate", 0.2, None)]
    assert [(turn["phase"], turn["engine"]) for turn in rows[held]] == [("held", None)]


async def build_population() -> tuple[Kit, dict[str, str]]:
    """Sessions in every condition that a filter tells apart, by name."""
    kit = build_kit()
    ids = {name: kit.create(metadata={"name": name, "run": 3}) for name in ("idle", "closed", "old", "young", "gate")}
    await kit.say(ids["closed"], ASK)
    kit.service.abort_all()
    for name in ("old", "young", "gate"):
        ids[name] = kit.create(metadata={"name": name, "run": "3", "nested": {"a": [1, None]}})
    ids["idle"] = kit.create()
    await kit.clock.advance(10.0)
    await kit.begin(ids["old"], ASK)
    await kit.clock.advance(20.0)
    await kit.begin(ids["young"], ASK)
    await kit.clock.advance(1.0)
    await kit.backend.control.pause(PauseMode.RETRACT, forward=False)
    await kit.begin(ids["gate"], ASK)
    await kit.clock.advance(4.0)
    for row in (await kit.service.list_sessions())["sessions"]:
        if row["session_id"] not in ids.values():
            kit.service.delete(row["session_id"])
    return kit, ids


FILTERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "everything": ({}, {"idle", "closed", "old", "young", "gate"}),
    "open": ({"state": SessionStatus.OPEN}, {"idle", "old", "young", "gate"}),
    "closed": ({"state": SessionStatus.CLOSED}, {"closed"}),
    "in flight": ({"in_flight": True}, {"old", "young", "gate"}),
    "not in flight": ({"in_flight": False}, {"idle", "closed"}),
    "at an engine": ({"phase": TurnPhase.ENGINE}, {"old", "young"}),
    "at the gate": ({"phase": TurnPhase.GATE}, {"gate"}),
    "held": ({"phase": TurnPhase.HELD}, set()),
    "in flight for long": ({"min_age_s": 25.0}, {"old"}),
    "in flight for a moment": ({"min_age_s": 5.0}, {"old", "young"}),
    "at an engine for long": ({"min_age_s": 25.0, "phase": TurnPhase.ENGINE}, {"old"}),
    "at the gate for long": ({"min_age_s": 25.0, "phase": TurnPhase.GATE}, set()),
    "in flight for any time": ({"min_age_s": 0.0}, {"old", "young", "gate"}),
    "idle": ({"min_idle_s": 30.0}, {"idle", "closed"}),
    "idle for longer": ({"min_idle_s": 300.0}, set()),
    "a text of metadata": ({"metadata": {"name": "old"}}, {"old"}),
    "a number and a text are spelled alike": ({"metadata": {"run": "3"}}, {"closed", "old", "young", "gate"}),
    "a value of metadata": ({"metadata": {"nested": '{"a":[1,null]}', "name": "gate"}}, {"gate"}),
    "no such metadata": ({"metadata": {"task": "3"}}, set()),
}


async def test_filters_leave_out_what_does_not_fit() -> None:
    kit, ids = await build_population()
    for name, (conditions, wanted) in FILTERS.items():
        assert set(await list_ids(kit, **conditions)) == {ids[each] for each in wanted}, name


async def test_the_longest_in_flight_come_first() -> None:
    kit, ids = await build_population()
    names = {session_id: name for name, session_id in ids.items()}
    assert [names[each] for each in await list_ids(kit, order=ListOrder.IN_FLIGHT)][:3] == ["old", "young", "gate"]
    assert {names[each] for each in (await list_ids(kit, order=ListOrder.IDLE))[:2]} == {"idle", "closed"}


ORDERS: dict[ListOrder, Any] = {
    ListOrder.ID: lambda row: row["session_id"],
    ListOrder.IN_FLIGHT: lambda row: -max((turn["age_s"] for turn in row["in_flight_turns"]), default=-1.0),
    ListOrder.CREATED: lambda row: row["created_at"],
    ListOrder.IDLE: lambda row: -row["idle_s"],
    ListOrder.BYTES: lambda row: -row["bytes"],
}


async def collect_pages(kit: Kit, query: SessionQuery) -> list[str]:
    found: list[str] = []
    while True:
        page = await kit.service.list_sessions(query)
        found += [row["session_id"] for row in page["sessions"]]
        if page["next"] is None:
            return found
        assert len(page["sessions"]) == query.limit
        query = replace(query, after=page["next"])


@pytest.mark.parametrize("order", ListOrder)
async def test_pages_of_any_size_are_the_list(order: ListOrder) -> None:
    kit, _ = await build_population()
    rows = (await kit.service.list_sessions(SessionQuery(order=order)))["sessions"]
    keys = [ORDERS[order](row) for row in rows]
    assert keys == sorted(keys)
    for limit in range(1, len(rows) + 2):
        assert await collect_pages(kit, SessionQuery(order=order, limit=limit)) == [row["session_id"] for row in rows]


@pytest.mark.parametrize("order", ListOrder)
async def test_sessions_that_come_and_go_move_no_other(order: ListOrder) -> None:
    kit, _ = await build_population()
    whole = await list_ids(kit, order=order)
    page = await kit.service.list_sessions(SessionQuery(order=order, limit=2))
    kit.service.delete(whole[1])
    fresh = kit.create(metadata={"x": "y" * 100})
    rest = await list_ids(kit, order=order, after=page["next"])
    assert [each for each in rest if each != fresh] == whole[2:]


BAD_CURSORS = {"nonsense": "x", "another order": "idle:1.0:0", "no number": "created:x:0", "empty": ""}


@pytest.mark.parametrize("cursor", BAD_CURSORS.values(), ids=BAD_CURSORS)
async def test_a_cursor_of_another_order_is_refused(cursor: str) -> None:
    kit = build_kit()
    with pytest.raises(RequestError, match="after is no place in the order created") as caught:
        await kit.service.list_sessions(SessionQuery(order=ListOrder.CREATED, after=cursor))
    assert caught.value.facts["param"] == "after"


@given(st.text(max_size=40))
async def test_any_text_is_a_place_among_ids(text: str) -> None:
    kit = build_kit()
    kit.create()
    assert len(await list_ids(kit, after=text)) <= 1


async def test_a_session_that_has_expired_is_not_listed() -> None:
    kit = build_kit()
    kit.create(ttl_s=5)
    await kit.clock.advance(5.0)
    assert await list_ids(kit) == []


async def test_a_row_is_bounded() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create(metadata={"text": "x" * MAX_ROW_METADATA_BYTES})
    for number in range(MAX_ROW_TURNS + 3):
        await kit.begin(session_id, [user(str(number))])
    (row,) = (await kit.service.list_sessions())["sessions"]
    assert row["metadata"] is None
    assert (row["in_flight"], len(row["in_flight_turns"])) == (MAX_ROW_TURNS + 3, MAX_ROW_TURNS)
    assert [turn["number"] for turn in row["in_flight_turns"]] == list(range(MAX_ROW_TURNS))


async def test_other_tasks_run_while_a_long_list_is_made() -> None:
    kit = build_kit(max_sessions=10_000)
    for _ in range(3 * LOOKED_AT_ONCE):
        kit.create()
    steps = 0

    async def count_steps() -> None:
        nonlocal steps
        while True:
            await asyncio.sleep(0)
            steps += 1

    task = asyncio.create_task(count_steps())
    assert len(await list_ids(kit, limit=5 * DESCRIBED_AT_ONCE)) == 5 * DESCRIBED_AT_ONCE
    task.cancel()
    assert steps >= 3 + 5 - 1


async def test_a_session_that_is_deleted_meanwhile_is_left_out() -> None:
    kit = build_kit(max_sessions=10_000)
    ids = sorted(kit.create() for _ in range(2 * DESCRIBED_AT_ONCE))

    async def delete() -> None:
        await asyncio.sleep(0)
        kit.service.delete(ids[-1])

    listed, _ = await asyncio.gather(list_ids(kit), delete())
    assert listed == ids[:-1]
