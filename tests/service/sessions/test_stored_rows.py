"""The list of sessions of a server with a store.

1. After a restart it has every session that the store has, as it was listed before, and loads none.
2. Filters, orders and cursors go over both, those in memory and those that are not: put together, pages of any size
   are the whole list, once each.
3. A session without a request for longer than its time to live is expired, whether the index says so or not.
4. A session whose opening cannot be read is listed with its error.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.sessions.test_storing import play, serving
from servicekit import Kit, user
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.sessions import ListOrder, SessionQuery, SessionStatus

OWN = {"bytes", "age_s", "idle_s", "last_request_at", "closed"}
"""What the list knows of a session in memory alone, or what goes on with the time."""

FRESH = "f" * 32
"""The id of a session of the second server: those that the server draws begin anew in these tests."""


async def read_rows(kit: Kit, **conditions: Any) -> list[JsonObject]:
    return (await kit.service.list_sessions(SessionQuery(**conditions)))["sessions"]


async def list_ids(kit: Kit, **conditions: Any) -> list[str]:
    return [row["session_id"] for row in await read_rows(kit, **conditions)]


async def create(kit: Kit, **body: Any) -> str:
    session_id = kit.create(**body)
    await kit.service.settle(kit.service.get_session_id(session_id))
    return session_id


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "slot-000" / "sessions.db")) as database, database:
        database.execute(statement)


async def test_every_session_of_the_store_is_listed_and_none_is_loaded(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        played = await play(kit, metadata={"task": 7})
        kit.service.abort_all()
        await kit.clock.advance(5)
        opened, gone = await create(kit, metadata={"long": "x" * 9000}), await create(kit)
        kit.service.delete(gone)
        before = {row["session_id"]: row for row in await read_rows(kit)}
    async with serving(tmp_path) as kit:
        after = {row["session_id"]: row for row in await read_rows(kit)}
        assert len(kit.parts.registry) == 0
        assert set(after) == set(before) == {played, opened}
        for session_id, row in after.items():
            assert set(row) == set(before[session_id])
            assert {name: row[name] for name in row if name not in OWN} == {
                name: before[session_id][name] for name in row if name not in OWN
            }
        assert (after[played]["state"], after[played]["turns"], after[opened]["metadata"]) == ("closed", 3, None)


async def test_filters_go_over_both(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        one, two = await create(kit, metadata={"task": 7}), await create(kit, metadata={"task": 8, "deep": {"a": 1}})
    async with serving(tmp_path) as kit:
        await kit.clock.advance(30)
        new = await create(kit, metadata={"task": 7}, session_id=FRESH)
        await kit.begin(new, [user("a")])
        assert await list_ids(kit, metadata={"task": "7"}) == sorted([one, new])
        assert await list_ids(kit, metadata={"deep": '{"a":1}'}) == [two]
        assert await list_ids(kit, in_flight=True) == [new]
        assert await list_ids(kit, in_flight=False) == await list_ids(kit, min_idle_s=30.0) == sorted([one, two])
        assert await list_ids(kit, min_age_s=0.0) == [new]
        assert await list_ids(kit, state=SessionStatus.CLOSED) == []
        await kit.service.recall([one])
        assert len(await list_ids(kit)) == 3
        assert await list_ids(kit, order=ListOrder.IN_FLIGHT) == [new, *sorted([one, two])]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("order", ListOrder)
async def test_pages_put_together_are_the_whole_list(tmp_path: Path, order: ListOrder, size: int) -> None:
    made: list[str] = []
    async with serving(tmp_path) as kit:
        for _ in range(4):
            made.append(await play(kit))
            await kit.clock.advance(0.7)
    async with serving(tmp_path) as kit:
        await kit.clock.advance(20.3)
        await kit.service.recall(made[1:3])
        made.append(await create(kit, session_id=FRESH))
        await kit.begin(made[1], [user("b")])
        listed, after = list[str](), None
        while True:
            page = await kit.service.list_sessions(SessionQuery(order=order, limit=size, after=after))
            listed += [row["session_id"] for row in page["sessions"]]
            assert len(page["sessions"]) <= size
            after = page["next"]
            if after is None:
                break
        assert sorted(listed) == sorted(made)
        assert listed == await list_ids(kit, order=order)
        if order is ListOrder.CREATED:
            assert listed == made
        if order is ListOrder.IDLE:
            assert listed == [made[0], made[2], made[3], made[4], made[1]]


async def test_what_had_no_request_for_too_long_is_expired(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        marked, lapsed, alive = await create(kit, ttl_s=5.0), await create(kit, ttl_s=50.0), await create(kit)
        await kit.clock.advance(10)
        assert kit.service.sweep() == 1
        assert await list_ids(kit) == sorted([lapsed, alive])
    async with serving(tmp_path) as kit:
        await kit.clock.advance(60)
        assert await list_ids(kit) == [alive]
        assert await list_ids(kit, state=SessionStatus.EXPIRED) == sorted([marked, lapsed])
        assert {row["state"] for row in await read_rows(kit, state=SessionStatus.EXPIRED)} == {"expired"}


async def test_a_session_that_cannot_be_read_is_listed_with_its_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        broken, sound = await play(kit), await play(kit)
    change(
        tmp_path,
        f"UPDATE events SET record = x'00' WHERE place = 0 AND session = "
        f"(SELECT number FROM sessions WHERE id = '{broken}')",
    )
    async with serving(tmp_path) as kit:
        rows = {row["session_id"]: row for row in await read_rows(kit)}
        assert set(rows) == {broken, sound}
        assert "at least" in rows[broken]["error"]
        assert "error" not in rows[sound]
