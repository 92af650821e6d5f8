"""Sessions of a store as people read them.

1. A folder with a store's file is a store, whatever else is in it.
2. A session is shown as its server shows it: while the server runs, after it was killed, and after it ended. Where
   time went, which engine answered and where ids and messages differ is known to the server alone.
3. The list is that of all slots, and of what is there to read; its filters are those that a store can answer.
4. What cannot be read of a session is said beside what can; a store that cannot be read is one error.
5. Reading writes nothing, and the server goes on.
"""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from service.sessions.test_storing import play, serving
from servicekit import Kit, user
from turnkeeper.errors import ConfigError, RequestError, SessionExpiredError, SessionNotFoundError, StoreVersionError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.store.folder import MANIFEST
from turnkeeper.views import explain_session, open_source
from turnkeeper.views.render import render_explanation, render_rows, render_session
from turnkeeper.views.server import read_answer
from turnkeeper.views.source import STORE_FILE
from turnkeeper.views.store import StoredOrder, StoreSource
from viewkit import ASKED, RESULT, look, say


async def show(kit: Kit, session_id: str) -> JsonObject:
    """The session as its server shows it, without what the server alone knows."""
    shown = asdict(read_answer(orjson.loads(await kit.service.describe(session_id, with_branches=True))))
    turns = tuple({**turn, "times": {}, "engine": ""} for turn in shown["turns"])
    return {**shown, "turns": turns, "in_flight": (), "mismatches": 0}


def read(folder: Path, session_id: str) -> JsonObject:
    return asdict(StoreSource(folder).read_session(session_id))


def list_ids(folder: Path, **filters: str) -> list[str]:
    return [row["session_id"] for row in StoreSource(folder).iter_rows(filters)]


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "slot-000" / "sessions.db")) as database, database:
        database.execute(statement)


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def read_files(folder: Path) -> dict[str, bytes]:
    """What is in a store, less what SQLite shares between processes."""
    paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


async def test_a_folder_with_a_store_is_one(tmp_path: Path) -> None:
    async with serving(tmp_path):
        pass
    (tmp_path / "a.safetensors").write_bytes(b"")
    assert STORE_FILE == MANIFEST
    assert isinstance(open_source(str(tmp_path)), StoreSource)


async def test_a_session_is_shown_as_its_server_shows_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "store") as kit:
        session_id = await play(kit, metadata={"task": 7})
        await kit.say(session_id, [user("x")], "fourth")  # with it is stored what nobody waited for
        waiting = await kit.begin(session_id, [user("w")])
        expected, files = await show(kit, session_id), read_files(tmp_path / "store")
        assert len(expected["turns"]) == 4
        assert read(tmp_path / "store", session_id) == expected
        assert read_files(tmp_path / "store") == files
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
        assert read(tmp_path / "killed", session_id) == expected
        kit.engine.answer()
        await waiting.read()
        assert len(read(tmp_path / "store", session_id)["turns"]) == 5
    assert len(read(tmp_path / "store", session_id)["turns"]) == 5
    assert read(tmp_path / "killed", session_id) == expected


async def test_a_fork_is_explained(tmp_path: Path) -> None:
    async with serving(tmp_path, session_message_matcher="strict") as kit:
        session_id = kit.create()
        called = {"message": look('{"key": "x"}'), "finish_reason": "tool_calls", "text": "look x"}
        await say(kit, session_id, ASKED, 1.0, **called)
        await say(kit, session_id, [*ASKED, look('{"key":"x"}'), RESULT], 1.0, text="done")
    session = StoreSource(tmp_path).read_session(session_id)
    assert session.turns[1].would_match
    assert f" · {session.turns[1].would_match} would have joined it to turn 0" in render_session(session)[-1]
    assert f"{session.turns[1].would_match} would have matched" in "\n".join(
        render_explanation(explain_session(session))
    )


async def test_the_sessions_of_a_store_are_listed(tmp_path: Path) -> None:
    async with serving(tmp_path, keeps_deleted=True) as kit:
        first = await play(kit, metadata={"task": 7})
        await kit.clock.advance(5)
        second, gone, late = kit.create(), kit.create(), kit.create(ttl_s=1.0)
        for made in (second, gone, late):
            await kit.service.settle(kit.service.get_session_id(made))
        kit.service.delete(gone)
        await kit.clock.advance(5)
        await kit.service.collect(first)
    async with serving(tmp_path, keeps_deleted=True) as kit:
        await kit.clock.advance(20)
        await kit.service.recall([late])
        with pytest.raises(SessionExpiredError):
            kit.find_entry(late)
    rows = {row["session_id"]: row for row in StoreSource(tmp_path).iter_rows({})}
    assert next(iter(rows)) == first
    assert {name: row["state"] for name, row in rows.items()} == {
        first: "open",
        second: "open",
        gone: "deleted",
        late: "expired",
    }
    assert (rows[first]["turns"], rows[first]["history"], rows[first]["metadata"]) == (3, "tree", {"task": 7})
    assert rows[first]["bytes"] > rows[second]["bytes"] > 0
    assert list_ids(tmp_path, state="expired") == [late]
    assert list_ids(tmp_path, **{"metadata.task": "7"}) == [first]
    assert list_ids(tmp_path, order="id") == sorted(rows)
    assert list_ids(tmp_path, order="bytes")[0] == first
    assert all(sorted(list_ids(tmp_path, order=order)) == sorted(rows) for order in StoredOrder)
    assert len(render_rows(list(rows.values()))) == 5


async def test_a_session_that_takes_no_further_turns_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        closed = await play(kit)
        kit.service.abort_all()
        await kit.service.settle(kit.service.get_session_id(opened := kit.create()))
    assert list_ids(tmp_path, state="closed") == [closed]
    assert list_ids(tmp_path, state="open") == [opened]
    assert StoreSource(tmp_path).read_session(closed).closed == "all turns were aborted"
    async with serving(tmp_path) as kit:
        await kit.service.recall([closed])
        assert kit.look(closed).closed_as == "all turns were aborted"
    change(tmp_path, "UPDATE events SET record = x'00' WHERE session = 1 AND place = 2")
    async with serving(tmp_path) as kit:
        await kit.service.recall([closed])
        assert kit.look(closed).closed_as is None
    assert list_ids(tmp_path, state="closed") == []


async def test_a_deleted_session_whose_records_are_gone_is_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
        kit.service.delete(session_id)
    assert list_ids(tmp_path) == []
    with pytest.raises(SessionNotFoundError, match="has no records of session"):
        StoreSource(tmp_path).read_session(session_id)


async def test_all_slots_are_one_list(tmp_path: Path) -> None:
    made: list[str] = []
    for name in ("one", "two"):
        async with serving(tmp_path / name) as kit:
            made.append(await play(kit))
    (tmp_path / "two" / "slot-000").rename(tmp_path / "one" / "slot-001")
    manifest = tmp_path / "one" / STORE_FILE
    manifest.write_bytes(orjson.dumps({**orjson.loads(manifest.read_bytes()), "slots": 3}))  # the third never began
    assert sorted(list_ids(tmp_path / "one")) == sorted(made)
    assert [read(tmp_path / "one", each)["id"] for each in made] == made


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"phase": "gate"}, "phase is told by servers"),
        ({"order": "in_flight"}, "order is no in_flight of a store"),
        ({"state": "gone"}, "state is no gone of a store"),
    ],
)
async def test_what_a_store_does_not_know_is_refused(tmp_path: Path, filters: dict[str, str], said: str) -> None:
    async with serving(tmp_path):
        pass
    with pytest.raises(RequestError, match=said):
        list_ids(tmp_path, **filters)


async def test_what_is_torn_is_said_beside_what_is_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id, other = await play(kit), kit.create()
        await kit.service.settle(kit.service.get_session_id(other))
    change(tmp_path, "UPDATE events SET record = x'00' WHERE place = 3 AND session = 1")
    session = StoreSource(tmp_path).read_session(session_id)
    (note,) = session.notes
    assert "records are left out" in note
    assert f"note: {note}" in render_session(session)
    change(tmp_path, "UPDATE events SET record = x'00' WHERE place = 0 AND session = 1")
    rows = {row["session_id"]: row for row in StoreSource(tmp_path).iter_rows({})}
    assert "error" in rows[session_id]
    assert "error" not in rows[other]
    assert "unreadable" in "\n".join(render_rows(list(rows.values())))


async def test_a_store_that_cannot_be_read_is_one_error(tmp_path: Path) -> None:
    async with serving(tmp_path):
        pass
    (tmp_path / "slot-000" / "sessions.db").write_bytes(b"no database" * 999)
    with pytest.raises(ConfigError, match="cannot be read: file is not a database"):
        list_ids(tmp_path)
    manifest = tmp_path / STORE_FILE
    manifest.write_bytes(orjson.dumps({**orjson.loads(manifest.read_bytes()), "version": 999}))
    with pytest.raises(StoreVersionError):
        StoreSource(tmp_path)


async def test_a_store_on_a_medium_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
    assert list_ids(tmp_path) == [session_id]  # a reader that may write leaves an empty log
    (tmp_path / "slot-000" / "sessions.db-shm").unlink()
    before = list_names(tmp_path)
    monkeypatch.setattr("turnkeeper.store.database._is_writable", lambda _: False)
    assert list_ids(tmp_path) == [session_id]
    assert len(read(tmp_path, session_id)["turns"]) == 3
    assert list_names(tmp_path) == before
