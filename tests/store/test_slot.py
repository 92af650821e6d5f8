"""A slot: what is stored is there again, in the same process and in the next.

1. Folding what was stored gives the live session, rows included; it goes on from there.
2. Commits of many sessions share a group; those of one keep their order; a cancelled wait does not cancel its commit.
3. A write that fails fails alone, and leaves the session as it was; events that nobody waits for come with the next.
4. Deleted sessions stay deleted, and leave no rows behind; expired ones keep their records.
5. Files are for their owner alone. A second process is refused, and so are other slots, other fingerprints, a newer
   version and a folder that cannot be written.
6. A broken database is moved aside with its rows, under a name that health tells.
7. Torn records and lost rows are told, counted and left out; the session goes on before them.
"""

import asyncio
import errno
import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from channelkit import rows_of_turn
from sessionkit import ask, user
from storekit import (
    FINGERPRINT,
    StoredTalk,
    create,
    open_store,
    opening_of,
    rows_of,
    session_id,
    spell,
    store_opening,
    storing,
)
from turnkeeper.core import DropReason, fold
from turnkeeper.core.event import ReplyDelivered, TokensDropped, TurnCommitted
from turnkeeper.errors import (
    ConfigError,
    SessionClosedError,
    SessionNotFoundError,
    StoreFullError,
    StoreLockedError,
    StoreMismatchError,
    StoreRecordError,
    StoreVersionError,
    StoreWriteError,
)
from turnkeeper.store import Durability, RowReading, SlotReader, StoredState, StoreRules
from turnkeeper.store.database import SQLITE_VERSION, open_reader
from turnkeeper.store.faults import CrashPoint


def find_db(folder: Path) -> Path:
    return folder / "slot-000" / "sessions.db"


def list_rows(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "slot-000" / "rows").iterdir())


async def test_what_was_stored_is_there_in_the_next_process(tmp_path: Path) -> None:
    talk = StoredTalk()
    opening = opening_of(talk.session, settings={"metadata": {"a": 1}}, limit_tokens=9, key_hash=b"k")
    async with storing(tmp_path) as store:
        stored = await store_opening(store, talk.id, opening)
        turn = await talk.say(stored, "one", rows=rows_of(4))
        await talk.say(stored, "two", rows=rows_of(3, first=4))
        talk.session.mark_delivered(turn.id, at=9.0)
        stored.note(talk.session.events[-1])
        await talk.say(stored, "three")
    async with storing(tmp_path) as store:
        assert store.find_state(talk.id) is StoredState.OPEN
        loaded, stored = await store.load(talk.id)
        assert spell(loaded.opening) == spell(opening)
        assert spell(list(loaded.events)) == spell(talk.session.events)
        assert (loaded.torn, loaded.lost_payloads, loaded.skipped) == ("", (), 0)
        assert [len(places) for places in loaded.places] == [1, 1, 0]
        talk.session = fold(loaded.events)
        await talk.say(stored, "four", rows=rows_of(2))
        loaded, again = await store.load(talk.id, RowReading.READ)
        assert again is stored
        assert spell(list(loaded.events)) == spell(talk.session.events)
        assert len((await store.load(talk.id, RowReading.LEAVE_OUT))[0].events) == len(talk.session.events)


async def test_a_line_says_what_a_session_has(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        await talk.say(stored, rows=rows_of(4))
        (line,) = store.reader.list_sessions()
        assert line == store.reader.find_session(talk.id)
        assert (line.events, line.turns, line.sampled_tokens, line.row_bytes) == (2, 1, 1, 16)
        assert (line.state, line.opened_at, line.changed_at, line.ttl_s) == (StoredState.OPEN, 1.0, 2.0, 60.0)
        assert store.reader.find_session(session_id(2)) is None
        with pytest.raises(SessionNotFoundError):
            await store.load(session_id(2))


async def test_commits_of_many_sessions_share_a_group(tmp_path: Path) -> None:
    talks = [StoredTalk(number) for number in range(1, 21)]
    async with storing(tmp_path) as store:
        sessions = await asyncio.gather(*(create(store, talk) for talk in talks))
        for _ in range(3):
            await asyncio.gather(*(talk.say(each) for talk, each in zip(talks, sessions, strict=True)))
        assert store.writer.stored_jobs == 80
        assert store.writer.stored_groups < 80
        assert [line.turns for line in store.reader.list_sessions()] == [3] * 20


async def test_a_cancelled_wait_does_not_cancel_its_commit(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        pending, turn = talk.prepare()
        task = asyncio.create_task(stored.commit(TurnCommitted(at=1.0, turn=turn)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        talk.session.append(pending, turn)
        await talk.say(stored)
        assert len((await store.load(talk.id))[0].places) == 2


async def test_a_turn_behind_one_that_was_not_stored_is_refused(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        talk.append(talk.prepare())
        _, second = talk.prepare()
        with pytest.raises(StoreWriteError, match=r"turn 1 cannot be stored.*has 0 turns"):
            await stored.commit(TurnCommitted(at=1.0, turn=second))


class Failing:
    """Raises what it is told to, at one point."""

    def __init__(self) -> None:
        self.at: CrashPoint | None = None
        self.error: BaseException = OSError(errno.ENOSPC, "No space left on device")

    def __call__(self, point: CrashPoint) -> None:
        if point is self.at:
            raise self.error


FAILING = (CrashPoint.BEFORE_ROWS, CrashPoint.ROWS_HALF_WRITTEN, CrashPoint.BEFORE_INSERT, CrashPoint.BEFORE_COMMIT)


@pytest.mark.parametrize("point", FAILING)
async def test_a_write_that_fails_leaves_the_session_as_it_was(tmp_path: Path, point: CrashPoint) -> None:
    talk, fault = StoredTalk(), Failing()
    async with storing(tmp_path, reach=fault) as store:
        stored = await create(store, talk)
        await talk.say(stored, "one", rows=rows_of(2))
        fault.at = point
        pending, turn = talk.prepare("lost", rows=rows_of(3), tools=({"name": "t"},))
        with pytest.raises(StoreWriteError, match="No space left") as failed:
            await stored.commit(TurnCommitted(at=1.0, turn=turn))
        assert (failed.value.http_status, failed.value.is_retryable) == (503, True)
        assert failed.value.facts == {"errno": errno.ENOSPC}
        assert "No space left" in store.describe()["failure"]
        talk.session.abandon(pending, at=1.0)
        stored.note(ReplyDelivered(at=1.0, turn_id=turn.id))  # fails as well, where its insert does
        fault.at = None
        await talk.say(stored, "two", rows=rows_of(1), tools=({"name": "t"},))
        assert store.describe()["failure"] == ""
        loaded, _ = await store.load(talk.id, RowReading.READ)
        turns = [event.turn for event in loaded.events if isinstance(event, TurnCommitted)]
        assert spell(turns) == spell(list(talk.session.forest.turns))
        assert any(isinstance(event, ReplyDelivered) for event in loaded.events)
        assert loaded.line.row_bytes == 12


async def test_an_event_that_nobody_waits_for_comes_with_the_next_turn(tmp_path: Path) -> None:
    talk, fault = StoredTalk(), Failing()
    async with storing(tmp_path, reach=fault) as store:
        stored = await create(store, talk)
        fault.at = CrashPoint.BEFORE_COMMIT
        stored.note(TokensDropped(at=1.0, reason=DropReason.CLIENT_GONE, sampled_tokens=3))
        stored.note(TokensDropped(at=1.0, reason=DropReason.CLIENT_GONE, sampled_tokens=4))
        with pytest.raises(StoreWriteError):
            await store.acknowledge(talk.id, "none", 1.0)
        fault.at = None
        await talk.say(stored)
        loaded, _ = await store.load(talk.id)
        assert [event.sampled_tokens for event in loaded.events if isinstance(event, TokensDropped)] == [3, 4]


async def test_an_event_that_nobody_waits_for_is_stored_soon_or_with_the_next_write(tmp_path: Path) -> None:
    talk, stored_at = StoredTalk(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def tell(point: CrashPoint) -> None:
        if point is CrashPoint.AFTER_COMMIT:
            loop.call_soon_threadsafe(stored_at.set)

    async with storing(tmp_path, reach=tell) as store:
        stored = await create(store, talk)
        groups = store.writer.stored_groups
        stored.note(TokensDropped(at=1.0, reason=DropReason.CLIENT_GONE, sampled_tokens=3))
        await talk.say(stored)
        assert store.writer.stored_groups == groups + 1
        stored_at.clear()
        stored.note(TokensDropped(at=1.0, reason=DropReason.CLIENT_GONE, sampled_tokens=4))
        await asyncio.wait_for(stored_at.wait(), 10)
        loaded, _ = await store.load(talk.id)
        assert [event.sampled_tokens for event in loaded.events if isinstance(event, TokensDropped)] == [3, 4]


async def test_a_vacuum_gives_the_room_of_deleted_sessions_back(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        for _ in range(30):
            await talk.say(stored, "x" * 30_000)
        await store.delete(talk.id, 1.0)
    store = open_store(tmp_path)
    try:
        before = store.used_bytes
        assert store.vacuum() == before - store.used_bytes > 500_000
        assert store.vacuum() == 0
    finally:
        store.start()
        await store.close()


async def test_one_job_that_cannot_be_stored_does_not_fail_its_group(tmp_path: Path) -> None:
    talks = [StoredTalk(1), StoredTalk(2)]
    async with storing(tmp_path) as store:
        one, two = [await create(store, talk) for talk in talks]
        _, bad = talks[0].prepare(sampling={"x": {1, 2}})
        pending, good = talks[1].prepare()
        results = await asyncio.gather(
            one.commit(TurnCommitted(at=1.0, turn=bad)),
            two.commit(TurnCommitted(at=1.0, turn=good)),
            return_exceptions=True,
        )
        assert isinstance(results[0], TypeError)
        assert results[1] == ()
        talks[1].session.append(pending, good)


async def test_an_id_is_created_once(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        await create(store, talk)
        with pytest.raises(StoreWriteError):
            await create(store, talk)


async def test_a_deleted_session_stays_deleted_and_leaves_no_rows(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        await talk.say(stored, rows=rows_of(5))
        assert list_rows(tmp_path) == [f"{talk.id}.rows"]
        await store.delete(talk.id, 5.0)
        assert list_rows(tmp_path) == []
        _, late = talk.prepare()
        with pytest.raises(SessionClosedError):
            await stored.commit(TurnCommitted(at=1.0, turn=late))
        stored.note(ReplyDelivered(at=1.0, turn_id=late.id))
    async with storing(tmp_path) as store:
        assert store.find_state(talk.id) is StoredState.DELETED
        (line,) = store.reader.list_sessions()
        assert (line.events, line.record_bytes, line.row_bytes, line.ended_at) == (0, 0, 0, 5.0)
        with pytest.raises(SessionNotFoundError):
            await store.load(talk.id)


async def test_an_expired_session_keeps_its_records(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        await talk.say(stored, rows=rows_of(5))
        await store.expire(talk.id, 7.0)
        assert store.find_state(talk.id) is StoredState.EXPIRED
        loaded = store.reader.load_session(talk.id, RowReading.READ)
        assert (loaded.line.turns, loaded.line.ended_at) == (1, 7.0)
        await store.delete(talk.id, 8.0, keeps_records=True)
        await store.expire(talk.id, 9.0)
        loaded = store.reader.load_session(talk.id)
        assert (loaded.line.turns, loaded.line.state, loaded.line.ended_at) == (1, StoredState.DELETED, 8.0)


async def test_row_files_that_no_session_has_are_removed_at_the_start(tmp_path: Path) -> None:
    async with storing(tmp_path):
        pass
    (tmp_path / "slot-000" / "rows" / f"{session_id(7)}.rows").write_bytes(b"x")
    (tmp_path / "slot-000" / "rows" / "notes.txt").write_bytes(b"not ours")
    async with storing(tmp_path) as store:
        assert list_rows(tmp_path) == ["notes.txt"]
        assert store.used_bytes > 8


async def test_receipts_outlive_the_process(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        await talk.say(stored)
        await store.add_receipt(talk.id, "abc", 1, 5.0)
        await store.add_receipt(talk.id, "abc", 1, 6.0)
        assert await store.acknowledge(talk.id, "abc", 7.0) == 1
    async with storing(tmp_path) as store:
        assert await store.acknowledge(talk.id, "abc", 8.0) == 1
        assert await store.acknowledge(talk.id, "other", 8.0) is None
        assert await store.acknowledge(session_id(9), "abc", 8.0) is None
        await store.add_receipt(session_id(9), "abc", 1, 5.0)
        (receipt,) = store.reader.list_receipts(talk.id)
        assert (receipt.turns, receipt.collected_at, receipt.acknowledged_at) == (1, 5.0, 7.0)
        (line,) = store.reader.list_sessions()
        assert (line.collected_turns, line.acknowledged_turns) == (1, 1)


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder, talk = tmp_path / "deep" / "store", StoredTalk()
    async with storing(folder) as store:
        stored = await create(store, talk)
        await talk.say(stored, rows=rows_of(2))
        modes = {
            (path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (folder, *folder.rglob("*")) if path.exists()
        }
    assert modes == {(True, 0o700), (False, 0o600)}


async def test_a_second_server_on_the_slot_is_refused(tmp_path: Path) -> None:
    async with storing(tmp_path):
        with pytest.raises(StoreLockedError, match=f"another process, {os.getpid()}"):
            open_store(tmp_path)
    async with storing(tmp_path):
        pass


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "slots": ({"slots": 2}, "made for slots 1, and this server has 2"),
    "tokenizer": ({"fingerprint": {**FINGERPRINT, "tokenizer": "u"}}, "made for tokenizer t, and this server has u"),
    "no template": ({"fingerprint": {"tokenizer": "t", "family": "qwen3"}}, r"made for template p.*has none"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_store_that_was_made_for_something_else_is_refused(tmp_path: Path, name: str) -> None:
    async with storing(tmp_path):
        pass
    fields, message = REFUSED[name]
    with pytest.raises(StoreMismatchError, match=message):
        open_store(tmp_path, **fields)


async def test_the_secret_is_that_of_the_first_start(tmp_path: Path) -> None:
    async with storing(tmp_path):
        pass
    async with storing(tmp_path, secret="00" * 32) as store:
        assert store.manifest.secret == "5e" * 32


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text(json.dumps({"version": 9, "whatever": 1}))
    with pytest.raises(StoreVersionError, match="version 9 of the store, and this one reads up to 1"):
        open_store(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}'])
def test_a_broken_manifest_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "store.json").write_text(text)
    with pytest.raises(ConfigError, match=r"store\.json is broken"):
        open_store(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--store .*file"):
        open_store(tmp_path / "file" / "store")


@pytest.mark.parametrize("how", ["no database", "a page overwritten"])
async def test_a_broken_database_is_moved_aside_with_its_rows(tmp_path: Path, how: str) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        for _ in range(20):
            await talk.say(stored, "x" * 3000, rows=rows_of(2))
    database = find_db(tmp_path)
    content = database.read_bytes()
    if how == "no database":
        database.write_bytes(b"no database" * 1000)
    else:  # as after the machine's end: not closed in order, in another run
        half = len(content) // 2 // 8192 * 8192
        database.write_bytes(content[:half] + bytes(8192) + content[half + 8192 :])
        mend_facts(database)
    async with storing(tmp_path) as store:
        aside = store.moved_aside
        assert store.describe()["moved_aside"] == aside != ""
        assert store.find_state(talk.id) is None
        assert (tmp_path / "slot-000" / aside).exists()
        assert (tmp_path / "slot-000" / aside.replace("sessions.db", "rows") / f"{talk.id}.rows").exists()
        await create(store, StoredTalk(2))


def mend_facts(database: Path) -> None:
    """Make a database look as one that was open when another run of the machine ended."""
    connection = sqlite3.connect(database)
    connection.execute("UPDATE facts SET value = '0' WHERE name = 'closed'")
    connection.execute("UPDATE facts SET value = 'another' WHERE name = 'boot'")
    connection.commit()
    connection.close()


def execute(folder: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(find_db(folder))
    connection.execute(statement, values)
    connection.commit()
    connection.close()


async def store_three_turns(folder: Path) -> StoredTalk:
    talk = StoredTalk()
    async with storing(folder) as store:
        stored = await create(store, talk)
        for first in range(3):
            await talk.say(stored, f"turn {first}", rows=rows_of(2, first=first))
    return talk


@pytest.mark.parametrize("how", ["torn", "missing", "wrong places"])
async def test_a_torn_record_is_told_and_the_session_goes_on_before_it(tmp_path: Path, how: str) -> None:
    talk = await store_three_turns(tmp_path)
    statement = {
        "torn": "UPDATE events SET record = substr(record, 1, 40) WHERE place = 2",
        "missing": "DELETE FROM events WHERE place = 2",
        "wrong places": "UPDATE events SET payloads = x'c1' WHERE place = 2",
    }[how]
    execute(tmp_path, statement)
    async with storing(tmp_path) as store:
        assert store.reader.load_session(talk.id).torn != ""
        loaded, stored = await store.load(talk.id)
        assert "record 2" in loaded.torn
        assert spell(list(loaded.events)) == spell(talk.session.events[:2])
        assert (loaded.skipped, store.torn_sessions, store.skipped_records) == (2, 1, 2)
        talk.session = fold(loaded.events)
        await talk.say(stored, "again", rows=rows_of(1, first=9))
        loaded, _ = await store.load(talk.id, RowReading.READ)
        assert (loaded.torn, loaded.line.turns, loaded.line.row_bytes) == ("", 2, 12)
        assert spell(list(loaded.events)) == spell(talk.session.events)


async def test_a_session_without_an_opening_cannot_be_loaded(tmp_path: Path) -> None:
    talk = await store_three_turns(tmp_path)
    execute(tmp_path, "DELETE FROM events WHERE place = 0")
    async with storing(tmp_path) as store:
        with pytest.raises(StoreRecordError, match="first record is not its opening"):
            await store.load(talk.id)


@pytest.mark.parametrize("reading", [RowReading.STORED, RowReading.READ])
async def test_a_turn_whose_rows_are_lost_is_there(tmp_path: Path, reading: RowReading) -> None:
    talk = await store_three_turns(tmp_path)
    path = tmp_path / "slot-000" / "rows" / f"{talk.id}.rows"
    os.truncate(path, 20)
    async with storing(tmp_path) as store:
        loaded, _ = await store.load(talk.id, reading)
        assert len(loaded.lost_payloads) == 1
        turns = [event.turn for event in loaded.events if isinstance(event, TurnCommitted)]
        *sound, lost = [rows_of_turn(turn.completion) for turn in turns]
        for rows in sound:
            assert rows is not None
            rows.check()
        if reading is RowReading.READ:
            assert lost is None
        else:
            assert lost is not None
            with pytest.raises(StoreRecordError, match=r"ends \d+ bytes before"):
                lost.check()


async def test_rows_with_a_wrong_checksum_are_lost(tmp_path: Path) -> None:
    talk = await store_three_turns(tmp_path)
    path = tmp_path / "slot-000" / "rows" / f"{talk.id}.rows"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    async with storing(tmp_path) as store:
        loaded, _ = await store.load(talk.id, RowReading.READ)
        assert "is not what was stored: 8 of 8 bytes" in loaded.lost_payloads[0]
        loaded = store.reader.load_session(talk.id, RowReading.STORED)
        assert loaded.lost_payloads == ()  # nobody has read them yet
        turns = [event.turn for event in loaded.events if isinstance(event, TurnCommitted)]
        first, second, _ = [rows_of_turn(turn.completion) for turn in turns]
        assert first is not None
        for look in (first.check, lambda: first.experts_RLK, lambda: first.cut(1, 2).experts_RLK):
            with pytest.raises(StoreRecordError, match="their checksum is wrong"):
                look()
        assert second is not None
        assert second.experts_RLK.any()
        path.unlink()
        assert len(store.reader.load_session(talk.id, RowReading.READ).lost_payloads) == 3
        assert len(store.reader.load_session(talk.id, RowReading.STORED).lost_payloads) == 3


async def test_a_full_store_takes_no_new_session(tmp_path: Path) -> None:
    async with storing(tmp_path, rules=StoreRules(max_bytes=1000)) as store:
        with pytest.raises(StoreFullError, match="and may take 1000") as refused:
            store.check_room()
        assert (refused.value.http_status, refused.value.retry_after_s) == (503, 30)
    async with storing(tmp_path, rules=StoreRules(max_bytes=10**9)) as store:
        store.check_room()


async def test_with_sync_everything_is_on_the_medium_before_anyone_is_told(tmp_path: Path) -> None:
    talk, seen = StoredTalk(), list[CrashPoint]()
    rules = StoreRules(durability=Durability.SYNC, row_durability=Durability.SYNC)
    async with storing(tmp_path, rules=rules, reach=seen.append) as store:
        stored = await create(store, talk)
        await talk.say(stored, rows=rows_of(2))
        assert CrashPoint.AFTER_ROWS_SYNC in seen
        driver: Any = store.writer._connection.connection.driver_connection
        # SQLite binds a connection to no thread here, and the writer is idle
        assert driver.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_a_reader_beside_a_server_reads_and_never_writes(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        await talk.say(stored, rows=rows_of(2))
        folder = tmp_path / "slot-000"
        before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if not path.name.endswith("-shm")}
        reader = SlotReader(open_reader(folder), folder / "rows")
        assert spell(list(reader.load_session(talk.id).events)) == spell(talk.session.events)
        reader.close()
        after = {path.name: path.stat().st_mtime_ns for path in folder.iterdir() if not path.name.endswith("-shm")}
        assert after == before
        await talk.say(stored)


async def test_health_names_the_version_of_sqlite(tmp_path: Path) -> None:
    async with storing(tmp_path) as store:
        assert store.describe()["sqlite"] == SQLITE_VERSION


async def test_rows_need_not_stay_in_memory(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        await talk.say(stored, rows=rows_of(3))
        pending, turn = talk.prepare(rows=rows_of(4, first=3, wide=True))
        (place,) = await stored.commit(TurnCommitted(at=turn.committed_at, turn=turn))
        rows = rows_of_turn(turn.completion)
        assert rows is not None
        rows.move(stored.read_run(place))
        assert not rows.in_memory
        assert rows.equals(rows_of(4, first=3, wide=True))
        assert rows.cut(1, 3).equals(rows_of(4, first=3, wide=True).cut(1, 3))
        talk.session.append(pending, turn)
        loaded, _ = await store.load(talk.id)
        found = [rows_of_turn(event.turn.completion) for event in loaded.events if isinstance(event, TurnCommitted)]
        assert [each is not None and each.in_memory for each in found] == [False, False]
        await store.delete(talk.id, 3.0)
        assert rows.equals(rows_of(4, first=3, wide=True))  # its file was open
        assert found[0] is not None
        with pytest.raises(StoreRecordError, match="No such file"):
            found[0].experts_RLK.sum()


async def test_messages_of_a_stored_session_attach_as_before(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        stored = await create(store, talk)
        turn = await talk.say(stored, "one")
        session = fold((await store.load(talk.id))[0].events)
        asked = (user("one"), turn.completion.message, user("two"))
        assert session.begin(ask(*asked), at=1.0).parent_id == turn.id
