"""``turnkeeper delete`` and ``turnkeeper vacuum``: what goes from a store without its server.

1. What is deleted stays deleted: its records and its rows are gone, its id stays taken, and other sessions are there.
2. It is done at a yes, or at --yes; a dry run says what would go. One unknown session, and none is deleted.
3. Both are refused while a server has the store, which is left as it is.
4. A vacuum gives room back, and removes what --keep and --max-bytes say, ended sessions alone.
5. A broken database is left where it is.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from service.sessions.test_storing import play, serving
from storekit import StoredTalk, create, open_store, storing
from turnkeeper.cli.main import app
from turnkeeper.errors import SessionNotFoundError
from turnkeeper.ids import SessionId
from turnkeeper.store import StoredState
from turnkeeper.views.store import StoreSource


async def invoke(*words: object, answer: str | None = None) -> Result:
    """Run a command, which runs an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(map(str, words)), answer)


def read_files(folder: Path) -> Mapping[Path, bytes]:
    """What is in a store, less what SQLite shares between processes, and the empty log that a reader leaves."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".db-shm"}
    return {path: data for path, data in files.items() if data or path.suffix != ".db-wal"}


def list_ids(folder: Path) -> list[str]:
    return [row["session_id"] for row in StoreSource(folder).iter_rows({})]


async def test_what_is_deleted_stays_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        gone, kept = await play(kit), await play(kit)
    told = await invoke("delete", tmp_path, gone, "--yes", "--json")
    assert (told.exit_code, told.stderr) == (0, "")
    (said,) = json.loads(told.stdout)["sessions"]
    assert (said["session_id"], said["turns"], said["uncollected_turns"]) == (gone, 3, 3)
    assert list_ids(tmp_path) == [kept]
    assert not list((tmp_path / "slot-000" / "rows").glob(f"{gone}*"))
    async with serving(tmp_path) as kit:
        await kit.service.recall([gone, kept])
        assert kit.find_entry(kept).session.forest.last is not None
        with pytest.raises(SessionNotFoundError):
            kit.find_entry(gone)
    store = open_store(tmp_path)
    assert [store.find_state(SessionId(each)) for each in (kept, gone)] == [StoredState.OPEN, StoredState.DELETED]
    await store.close()


@pytest.mark.parametrize(
    ("words", "answer", "status", "told", "is_deleted"),
    [
        ((), "y\n", 0, "1 session deleted", True),
        ((), "n\n", 1, "nothing is deleted", False),
        ((), None, 2, "nobody answered", False),
        (("--dry-run",), None, 0, "1 session would be deleted", False),
        (("--yes", "{missing}"), None, 1, "has no records of session", False),
    ],
    ids=["yes", "no", "nobody answers", "dry run", "one is unknown"],
)
async def test_nothing_is_deleted_by_mistake(
    tmp_path: Path, words: tuple[str, ...], answer: str | None, status: int, told: str, is_deleted: bool
) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
    before = read_files(tmp_path)
    given = [word.format(missing="0" * 32) for word in words]
    result = await invoke("delete", tmp_path, session_id, *given, answer=answer)
    assert result.exit_code == status, result.output
    assert told in result.stderr
    assert list_ids(tmp_path) == ([] if is_deleted else [session_id])
    assert (read_files(tmp_path) == before) is not is_deleted


@pytest.mark.parametrize(
    ("words", "hint"),
    [(("delete", "{store}", "{id}", "--yes"), "DELETE /sessions/{id}"), (("vacuum", "{store}"), "--store-keep")],
    ids=["delete", "vacuum"],
)
async def test_a_store_that_a_server_has_is_left_to_it(tmp_path: Path, words: tuple[str, ...], hint: str) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
        before = read_files(tmp_path)
        result = await invoke(*(word.format(store=tmp_path, id=session_id) for word in words))
        assert (result.exit_code, result.stdout.count("\n") <= 1) == (2, True)
        assert "belongs to another process" in result.stderr
        assert hint in result.stderr
        assert read_files(tmp_path) == before
        assert (await invoke("delete", tmp_path, session_id, "--dry-run")).exit_code == 0


async def test_a_vacuum_gives_room_back(tmp_path: Path) -> None:
    talk, other = StoredTalk(1), StoredTalk(2)
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        for _ in range(30):
            await talk.say(stored, "x" * 30_000)
        await other.say(await create(store, other))
        await store.delete(talk.id, 1.0)
    size = (tmp_path / "slot-000" / "sessions.db").stat().st_size
    told = json.loads((await invoke("vacuum", tmp_path, "--json")).stdout)
    assert told["before_bytes"] - told["after_bytes"] > 500_000
    assert size - (tmp_path / "slot-000" / "sessions.db").stat().st_size > 500_000
    assert told["removed"] == []
    assert list_ids(tmp_path) == [other.id]
    again = await invoke("vacuum", tmp_path)
    assert again.stdout.startswith("the store takes 0.")


@pytest.mark.parametrize("words", [("--keep", "12h"), ("--max-bytes", "1")], ids=" ".join)
async def test_a_vacuum_removes_what_it_is_told_to(tmp_path: Path, words: tuple[str, str]) -> None:
    old, used = StoredTalk(1), StoredTalk(2, at=4e9)  # one whose last event is still to come
    async with storing(tmp_path) as store:
        for talk in (old, used):
            await talk.say(await create(store, talk))
        await store.expire(old.id, 5.0)
    result = await invoke("vacuum", tmp_path, *words)
    assert result.exit_code == 0, result.output
    assert f"{old.id} · expired · 1 turn · 0.0 MiB · 1 turn never collected" in result.stdout
    assert "removed 1 session" in result.stderr
    assert list_ids(tmp_path) == [used.id]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("vacuum", "{store}", "--keep", "soon"), "--keep soon: input should be a valid number"),
        (("vacuum", "{store}", "--max-bytes", "much"), "--max-bytes much: could not parse value"),
        (("vacuum", "{store}/none"), "none cannot be read: "),
        (("delete", "{store}/none", "a"), "none cannot be read: "),
    ],
    ids=["age", "bytes", "vacuum of no store", "delete in no store"],
)
async def test_what_cannot_be_used_is_one_error(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    async with storing(tmp_path):
        pass
    result = await invoke(*(word.format(store=tmp_path) for word in words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("turnkeeper: error: ")
    assert told in result.stderr


async def test_a_broken_database_is_left_where_it_is(tmp_path: Path) -> None:
    async with storing(tmp_path):
        pass
    database = tmp_path / "slot-000" / "sessions.db"
    database.write_bytes(b"no database" * 999)
    result = await invoke("vacuum", tmp_path)
    assert result.exit_code == 2
    assert "is broken" in result.stderr
    assert database.read_bytes() == b"no database" * 999
