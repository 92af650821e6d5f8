"""Sessions in a store.

1. A server that opens the store of another goes on with its sessions: next turns, retries, samples, keys.
2. A turn is visible once it is stored, and not before; one that cannot be stored leaves the session as it was.
3. Rows of stored turns are not in memory.
4. A deleted session stays deleted, and an expired one expired, also where turns may open sessions.
5. The end of a server ends no session.
6. A receipt stands for no turn that took the place of a torn one.
7. A wall clock that jumps back ends no session, removes none and loses none.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from channelkit import rows_of_turn
from service.sessions.test_memory import CONFIG, RoutingEngine
from servicekit import Kit, assistant, build_kit, user
from storekit import FINGERPRINT, SECRET
from turnkeeper.core import DropReason
from turnkeeper.errors import SessionExpiredError, SessionNotFoundError, StoreFullError, StoreWriteError
from turnkeeper.http.app import build_app
from turnkeeper.ids import SessionId
from turnkeeper.samples import decode_samples
from turnkeeper.service.sessions import NewSession
from turnkeeper.service.sessions.footprint import Part, measure_session
from turnkeeper.service.sessions.keeping.storing import StoreKeeper
from turnkeeper.store import RetentionRules, SessionStore, StoreRules
from turnkeeper.store.faults import CrashPoint, Reach, go_on
from turnkeeper.telemetry import SessionEnded, SessionEndReason, SessionRestored
from turnkeeper.testing.clock import ManualClock, settle

OPTIONS: Mapping[str, Any] = {"use_session_server": "v2", "reconnect_grace": 1.0}


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    reach: Reach = go_on,
    rules: StoreRules | None = None,
    keeps_deleted: bool = False,
    clock: ManualClock | None = None,
    **options: Any,
) -> AsyncIterator[Kit]:
    """A server with its store in this folder; it ends in order."""
    store = SessionStore.open(folder, fingerprint=FINGERPRINT, secret=SECRET, reach=reach, rules=rules)
    store.start()
    retention, clock = RetentionRules(keep_s=7 * 86400.0, tombstone_s=3600.0), clock or ManualClock()
    kit = build_kit(
        clock=clock,
        build_keeper=lambda matcher: StoreKeeper(
            store, matcher, clock=clock, retention=retention, keeps_deleted=keeps_deleted
        ),
        **{**OPTIONS, **options},
    )
    try:
        yield kit
    finally:
        await kit.backend.lifecycle.close()


async def collect(kit: Kit, session_id: str) -> bytes:
    await kit.service.recall([session_id])
    return (await kit.service.collect(session_id)).to_bytes()


async def play(kit: Kit, **body: Any) -> str:
    """A session with a branch, a retry that was lost, and a call that was given up."""
    session_id = kit.create(**body)
    await kit.say(session_id, [user("a")], "first")
    await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
    await kit.say(session_id, [user("a"), assistant("first"), user("c")], "third")
    gone = await kit.begin(session_id, [user("z")])
    await gone.hang_up()
    await kit.clock.advance(2)
    return session_id


async def test_another_server_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit, metadata={"task": 7}, temperature=0.5, ttl_s=99.0)
        before, payload = kit.look(session_id), await collect(kit, session_id)
    async with serving(tmp_path) as kit:
        with pytest.raises(SessionNotFoundError):
            kit.find_entry(session_id)
        await kit.service.recall([session_id])
        entry = kit.find_entry(session_id)
        assert (entry.settings.metadata, dict(entry.settings.pins), entry.ttl_s) == (
            {"task": 7},
            {"temperature": 0.5},
            99.0,
        )
        assert entry.session.ledger == before.ledger
        assert entry.session.closed_as is None
        assert await collect(kit, session_id) == payload
        await kit.say(session_id, [user("a"), assistant("first"), user("b"), assistant("second"), user("d")], "fourth")
        assert kit.look(session_id).forest.turns[-1].parent == 1


async def test_a_process_that_ends_at_once_leaves_what_was_answered(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as kit:
        session_id = await play(kit)
        payload = await collect(kit, session_id)
        waiting = await kit.begin(session_id, [user("w")])
        shutil.copytree(tmp_path / "one", tmp_path / "two")  # what the kernel holds of a process that is killed now
        kit.engine.answer()
        await waiting.read()
    async with serving(tmp_path / "two") as kit:
        before, after = (decode_samples(each).samples for each in (payload, await collect(kit, session_id)))
        assert [sample.tokens.tolist() for sample in after] == [sample.tokens.tolist() for sample in before]
        assert [sample.loss_mask.tolist() for sample in after] == [sample.loss_mask.tolist() for sample in before]


async def test_tokens_that_were_dropped_on_the_way_to_a_turn_are_stored_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as kit:
        session_id = kit.create()
        turn = await kit.begin(session_id, [user("a")])
        kit.find_entry(session_id).drop(DropReason.ABORTED_PIECE, 3)
        kit.engine.answer(text="first")
        await turn.read()
        shutil.copytree(tmp_path / "one", tmp_path / "two")
    async with serving(tmp_path / "two") as kit:
        await kit.service.recall([session_id])
        assert kit.look(session_id).ledger.dropped == {DropReason.ABORTED_PIECE: 3}


async def test_a_retry_of_a_turn_whose_delivery_nobody_knows_gets_its_reply(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = kit.create()
        turn = await kit.begin(session_id, [user("a")])
        kit.engine.answer(text="first")
        await turn.waiting  # written, and nobody notes that it was
    async with serving(tmp_path) as kit:
        await kit.service.recall([session_id])
        assert await kit.say(session_id, [user("a")], "sampled anew") == "first"
        assert len(kit.look(session_id).forest) == 1
        assert await kit.say(session_id, [user("a")], "sampled anew") == "sampled anew"


async def test_a_turn_whose_delivery_nobody_knows_is_trained(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = kit.create()
        turn = await kit.begin(session_id, [user("a")])
        kit.engine.answer(text="first")
        await turn.waiting
        assert not decode_samples(await collect(kit, session_id)).samples, "the reply may still be on its way"
    async with serving(tmp_path) as kit:
        (sample,) = decode_samples(await collect(kit, session_id)).samples
        assert sample.loss_mask.sum() == kit.look(session_id).ledger.sampled


class FullDisk:
    """Fails the writes that reach a step while it is full."""

    def __init__(self, point: CrashPoint) -> None:
        self.point = point
        self.is_full = False

    def __call__(self, point: CrashPoint) -> None:
        if self.is_full and point is self.point:
            raise OSError(28, "No space left on device")


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_INSERT, CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_ROWS])
async def test_a_turn_that_cannot_be_stored_fails_and_changes_nothing(tmp_path: Path, point: CrashPoint) -> None:
    disk = FullDisk(point)
    async with serving(tmp_path, reach=disk) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        sampled = kit.look(session_id).ledger.sampled
        disk.is_full = True
        turn = await kit.begin(session_id, [user("a"), assistant("first"), user("b")])
        kit.engine.answer(text="second")
        with pytest.raises(StoreWriteError, match="could not be written"):
            await turn.read()
        session = kit.look(session_id)
        assert len(session.forest) == 1
        assert session.ledger.dropped[DropReason.STREAM_FAILED] == session.ledger.sampled - sampled > 0
        assert "No space left" in kit.backend.health.describe()["store"]["failure"]
        disk.is_full = False
        await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
        ledger, payload = kit.look(session_id).ledger, await collect(kit, session_id)
    async with serving(tmp_path) as kit:
        assert await collect(kit, session_id) == payload
        assert kit.look(session_id).ledger == ledger


async def test_a_session_whose_opening_cannot_be_stored_is_none(tmp_path: Path) -> None:
    disk = FullDisk(CrashPoint.BEFORE_COMMIT)
    disk.is_full = True
    async with serving(tmp_path, reach=disk) as kit:
        created = kit.create()
        with pytest.raises(StoreWriteError):
            await kit.service.settle(kit.find_entry(created).id)
        with pytest.raises(SessionNotFoundError):
            kit.find_entry(created)
        disk.is_full = False
    async with serving(tmp_path) as kit:
        await kit.service.recall([created])
        with pytest.raises(SessionNotFoundError):
            kit.find_entry(created)


async def test_a_full_store_takes_no_new_session_and_every_running_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, rules=StoreRules(max_bytes=1 << 30)) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
    async with serving(tmp_path, rules=StoreRules(max_bytes=1)) as kit:
        with pytest.raises(StoreFullError, match="may take 1"):
            kit.create()
        await kit.service.recall([session_id])
        await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")


@pytest.mark.parametrize("keeps_deleted", [False, True])
async def test_a_deleted_session_stays_deleted(tmp_path: Path, *, keeps_deleted: bool) -> None:
    options = {"keeps_deleted": keeps_deleted, "auto_create_sessions": True}
    async with serving(tmp_path, **options) as kit:
        session_id = await play(kit)
        kit.service.delete(session_id)
        await kit.service.settle(kit.service.get_session_id(kit.create()))
    async with serving(tmp_path, **options) as kit:
        await kit.service.recall([session_id])
        with pytest.raises(SessionNotFoundError):
            await kit.begin(session_id, [user("a")])


async def test_an_opening_that_is_repeated_to_another_server_opens_the_same_session(tmp_path: Path) -> None:
    session_id = "5c" * 16
    opening = {"session_id": session_id, "metadata": {"task": 7}}

    async def post(*openings: Mapping[str, Any]) -> list[int]:
        async with serving(tmp_path) as kit:
            app = httpx.ASGITransport(build_app(kit.backend))
            async with httpx.AsyncClient(transport=app, base_url="http://server") as client:
                return [(await client.post("/sessions", json=body)).status_code for body in openings]

    assert await post(opening) == [200]
    assert await post({**opening, "metadata": {"task": 8}}, opening) == [400, 200]


async def test_a_session_expires_by_the_time_without_a_process_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = kit.create(ttl_s=100.0)
        await kit.say(session_id, [user("a")], "first")
    async with serving(tmp_path) as kit:
        await kit.clock.advance(101.0)
        await kit.service.recall([session_id])
        with pytest.raises(SessionExpiredError):
            kit.find_entry(session_id)
    async with serving(tmp_path) as kit:
        await kit.service.recall([session_id])
        with pytest.raises(SessionExpiredError):
            kit.find_entry(session_id)


async def test_keys_of_sessions_outlive_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path, api_key=("admin",)) as kit:
        created = kit.service.create(NewSession())
    async with serving(tmp_path, api_key=("admin",)) as kit:
        await kit.service.recall([created.id])
        assert kit.service.identify([created.key or ""]).grants[0].session_id == created.id
        assert not kit.service.identify([f"{created.key}0"]).grants


async def test_stored_rows_are_not_in_memory_and_samples_hold_them(tmp_path: Path) -> None:
    options: Mapping[str, Any] = {"use_rollout_routing_replay": True, "checkpoint_config": CONFIG}
    async with serving(tmp_path, engine=RoutingEngine(), **options) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
        turns = kit.look(session_id).forest.turns
        assert [rows_of_turn(turn.completion).in_memory for turn in turns] == [False, False]
        entry = kit.find_entry(session_id)
        assert entry.held[Part.ROWS] == 0
        assert dict(entry.held) == dict(measure_session(entry))
        payload = await collect(kit, session_id)
    async with serving(tmp_path, engine=RoutingEngine(), **options) as kit:
        assert await collect(kit, session_id) == payload
        assert [rows_of_turn(turn.completion).in_memory for turn in kit.look(session_id).forest.turns] == [False, False]
    rows = decode_samples(payload).samples[0].rollout_routed_experts
    assert np.any(rows)


async def test_a_request_that_asks_while_a_session_is_loaded_waits_for_the_one_load(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
    async with serving(tmp_path) as kit:
        await asyncio.gather(*(kit.service.recall([session_id]) for _ in range(5)))
        entry = kit.find_entry(session_id)
        await kit.service.recall([session_id])
        assert kit.find_entry(session_id) is entry
        await settle()


@pytest.mark.parametrize("acknowledges_before", [True, False])
async def test_a_receipt_stands_for_no_turn_that_took_the_place_of_a_torn_one(
    tmp_path: Path, acknowledges_before: bool
) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
        receipt = (await kit.service.collect(session_id)).receipt
        assert receipt is not None
        if acknowledges_before:
            await kit.service.acknowledge(session_id, receipt)
    tear(tmp_path, turn=1)
    async with serving(tmp_path) as kit:
        await kit.service.recall([session_id])
        assert len(kit.look(session_id).forest) == 1
        await kit.say(session_id, [user("a"), assistant("first"), user("n")], "new")
        assert (await kit.service.acknowledge(session_id, receipt)).turn_ids == (0,)
        collected = decode_samples((await kit.service.collect(session_id, since=receipt)).to_bytes())
        own = collected.session_metadata["turnkeeper"]
        assert own["acknowledged"] == {"receipt": receipt, "turns": [0]}
        turns = {turn["id"]: turn for turn in own["turns"]}
        (sample,) = collected.samples
        assert sample.loss_mask.sum() == turns[1]["completion_tokens"]
    async with serving(tmp_path) as kit:
        await kit.service.recall([session_id])
        assert (await kit.service.acknowledge(session_id, receipt)).turn_ids == (0,)


def tear(folder: Path, *, turn: int) -> None:
    """Tear the record of a turn of the only session."""
    with closing(sqlite3.connect(folder / "slot-000" / "sessions.db")) as database, database:
        query = "SELECT place FROM events WHERE instr(record, x'a47475726e') > 0 ORDER BY place"  # the name of a turn's
        places = database.execute(query).fetchall()
        database.execute("UPDATE events SET record = x'00' WHERE place = ?", places[turn])


async def test_a_session_that_is_kept_is_not_lost_with_its_process(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
    (ended,) = (each for each in kit.reports if isinstance(each, SessionEnded))
    assert (ended.reason, ended.turns) == (SessionEndReason.KEPT, 1)
    counted = kit.backend.metrics.render().decode()
    assert 'turnkeeper_tokens_dropped_total{reason="deleted"} 0.0' in counted
    assert 'turnkeeper_sessions_ended_total{reason="kept in the store"} 1.0' in counted


async def test_what_was_collected_before_a_restart_stays_collected(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        await collect(kit, session_id)
    async with serving(tmp_path) as kit:
        await collect(kit, session_id)
        (restored,) = (each for each in kit.reports if isinstance(each, SessionRestored))
        assert (restored.session_id, restored.history, restored.turns) == (session_id, "tree", 1)
        metrics = kit.backend.metrics.render().decode()
        assert "turnkeeper_sessions_restored_total 1.0" in metrics
        assert 'turnkeeper_tokens_collected_total{fate="trainable"} 0.0' in metrics
        kit.service.delete(session_id)
        (ended,) = (each for each in kit.reports if isinstance(each, SessionEnded))
        assert (ended.turns, ended.uncollected_tokens) == (1, 0)


async def test_the_store_is_measured_and_has_every_series_without_one(tmp_path: Path) -> None:
    def read(kit: Kit) -> dict[str, float]:
        lines = kit.backend.metrics.render().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("turnkeeper_store_"))
        return {name: float(value) for name, value in pairs}

    without = read(build_kit())
    assert set(without.values()) == {0.0}
    async with serving(tmp_path) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        read(kit)
    measured = read(kit)  # all is stored
    assert read(kit) == measured
    assert measured.keys() == without.keys()
    assert measured["turnkeeper_store_waiting_writes"] == 0
    assert measured["turnkeeper_store_sessions"] == 1
    assert measured["turnkeeper_store_writes_total"] >= measured["turnkeeper_store_transactions_total"] >= 1
    assert measured["turnkeeper_store_transaction_seconds_total"] > 0
    assert measured["turnkeeper_store_bytes"] > 0
    assert measured["turnkeeper_store_failed_writes_total"] == 0


async def test_a_clock_that_jumps_back_ends_and_loses_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit, ttl_s=60.0)
        receipt = (await kit.service.collect(session_id)).receipt
        assert receipt is not None
    a_day_ago = ManualClock(unix=ManualClock().unix() - 86400.0)
    async with serving(tmp_path, clock=a_day_ago) as kit:
        (row,) = (await kit.service.list_sessions())["sessions"]
        assert (row["session_id"], row["age_s"], row["idle_s"]) == (session_id, 0.0, 0.0)
        await kit.service.recall([session_id])
        await kit.clock.advance(59)
        await kit.say(session_id, [user("a"), assistant("first"), user("n")], "new")
        assert (await kit.service.acknowledge(session_id, receipt)).turn_ids == (0, 1, 2)
        kit.service.sweep()
        assert len(kit.look(session_id).forest) == 4
        await kit.clock.advance(61)
        assert kit.service.sweep() == 1  # its time to live counts from its last request, by a clock that never jumps
    store = SessionStore.open(tmp_path, fingerprint=FINGERPRINT, secret=SECRET)
    store.start()
    rules = RetentionRules(keep_s=3600.0, tombstone_s=60.0)
    assert await store.apply_retention(rules, now=a_day_ago.unix() - 86400.0) == []
    assert len(store.reader.load_session(SessionId(session_id)).places) == 4
    await store.close()
