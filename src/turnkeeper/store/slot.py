"""A slot of a store as one server process has it: everything the service asks of the store goes through here.

``SessionStore.open`` takes the slot's lock, checks the database, moves it aside where it is broken, and starts the
writer. What is written is awaited by the event loop and done in the writer's thread; what is read is read in threads.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from turnkeeper.channels import ReadItems
from turnkeeper.choices import Durability, StoredState
from turnkeeper.core.event import Event, SessionClosed, TurnCommitted
from turnkeeper.errors import StoreFullError
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.store.database import DATABASE, SQLITE_VERSION, open_database, open_reader
from turnkeeper.store.faults import Reach, go_on
from turnkeeper.store.folder import ROWS, SlotLock, StoreManifest, find_slot, open_manifest
from turnkeeper.store.jobs import Acknowledge, AddReceipt, AppendEvents, EndSession, ForgetTombstones, Job, SetAside
from turnkeeper.store.opening import SessionOpening
from turnkeeper.store.payload import PayloadPlace
from turnkeeper.store.reading import LoadedSession, RowReading, SlotReader, StoredLine
from turnkeeper.store.retention import RetentionRules, choose_removals
from turnkeeper.store.rowfile import RowFiles, StoredItems
from turnkeeper.store.tail import SessionTail, Tail
from turnkeeper.store.writer import SlotWriter

logger = logging.getLogger("turnkeeper.store")

FULL_RETRY_S = 30
"""After how many seconds whoever wanted a new session may ask again while the store is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRules:
    """How a store is kept."""

    durability: Durability = Durability.PROCESS
    """What a stored turn survives."""
    row_durability: Durability = Durability.PROCESS
    """What its rows survive."""
    max_bytes: int | None = None
    """The bytes beyond which no new session is opened; None for no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMeasures:
    """A slot in numbers; those that only grow are counted since the start of the process."""

    sessions: int
    """How many sessions the slot knows, ended ones included."""
    used_bytes: int
    """What the slot takes on disk."""
    waiting_jobs: int
    """How many writes wait for the writer."""
    stored_jobs: int
    """How many writes were stored."""
    stored_groups: int
    """In how many transactions they were stored."""
    storing_s: float
    """The seconds that these took, rows and syncs included."""
    failed_jobs: int
    """How many writes failed."""
    removed_collected: int
    """How many sessions were removed to keep the limits, of which every turn was collected or deleted."""
    removed_uncollected: int
    """How many were removed with turns that nobody collected."""
    torn_sessions: int
    """How many sessions were loaded without their last records."""
    skipped_records: int
    """How many records could not be read."""


class StoredSession:
    """One session that this process writes."""

    def __init__(self, store: "SessionStore", tail: SessionTail) -> None:
        self.id = tail.id
        self.tail = tail
        self._store = store
        self._file = store.rows.open(tail.id)

    async def commit(self, event: TurnCommitted) -> tuple[PayloadPlace, ...]:
        """Store a turn, and return where its payloads stand once it is stored.

        Turns of a session are stored one after the other: the next one is handed over when this one is stored or has
        failed. Cancelling the call does not cancel the write.

        Raises:
            StoreWriteError: it is not stored, and the session is as it was.
            SessionClosedError: the session was deleted.
        """
        return await self._store.submit(AppendEvents(self.tail, [event]))

    def read_run(self, place: PayloadPlace) -> ReadItems:
        """What reads the items at a place: given to ``ItemRun.move``, it frees their memory."""
        return StoredItems(self._file, place, is_checked=True)

    def note(self, event: Event) -> None:
        """Store an event that nobody waits for, with whatever is stored next; failing, it goes with the next turn."""
        self._store.submit_later(AppendEvents(self.tail, [event], is_awaited=False))


class SessionStore:
    """The sessions of one slot. Its methods are for the event loop; those that are not coroutines return at once."""

    def __init__(
        self,
        *,
        manifest: StoreManifest,
        rules: StoreRules,
        folder: Path,
        lock: SlotLock,
        connection: Connection,
        rows: RowFiles,
        moved_aside: str,
        reach: Reach = go_on,
    ) -> None:
        """Made by ``open``."""
        self.manifest = manifest
        self.rules = rules
        self.moved_aside = moved_aside
        """Under which name a broken database was moved aside at the start; empty where it was sound."""
        self.reader = SlotReader(open_reader(folder), rows.folder)
        self.writer = SlotWriter(connection, rows, row_durability=rules.row_durability, reach=reach)
        self._folder = folder
        self._lock = lock
        self.rows = rows
        self._states: dict[SessionId, StoredState] = {}
        self._writing: dict[SessionId, StoredSession] = {}
        self._next_number = 1
        self.torn_sessions = 0
        """How many sessions were loaded without their last records."""
        self.skipped_records = 0
        """How many records those were."""
        self._removed_collected = self._removed_uncollected = 0

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        fingerprint: Mapping[str, str],
        secret: str,
        slot: int = 0,
        slots: int = 1,
        rules: StoreRules | None = None,
        reach: Reach = go_on,
        moves_aside: bool = True,
    ) -> "SessionStore":
        """Open a slot of a store, and make the store where there is none. Blocks, for less than a second as a rule.

        Args:
            folder: the store's.
            fingerprint: what the ids of this server mean: names and digests.
            secret: 64 random hex digits, which become the store's where it is made.
            slot: which slot, from 0.
            slots: how many slots the store has.
            rules: how the store is kept.
            reach: called at each step of a write; for tests.
            moves_aside: whether a broken database is moved aside; False refuses it.

        Raises:
            StoreMismatchError: the store was made for another tokenizer, template, family or number of slots.
            StoreVersionError: a newer version made it.
            StoreLockedError: another process has the slot.
            ConfigError: the folder cannot be written, or its database is broken and to stay where it is.
        """
        rules = rules or StoreRules()
        manifest = open_manifest(folder, slots=slots, fingerprint=fingerprint, secret=secret)
        home = find_slot(folder, slot)
        lock = SlotLock(home)
        try:
            connection, moved_aside = open_database(home, rules.durability, moves_aside=moves_aside)
            store = cls(
                manifest=manifest,
                rules=rules,
                folder=home,
                lock=lock,
                connection=connection,
                rows=RowFiles(home / ROWS, reach),
                moved_aside=moved_aside,
                reach=reach,
            )
            store._recover()
        except BaseException:
            lock.release()
            raise
        return store

    def start(self) -> None:
        """Start to write."""
        self.writer.start()

    # Sessions.

    @property
    def used_bytes(self) -> int:
        """What the slot takes on disk."""
        return self.rows.used_bytes + sum(each.stat().st_size for each in self._folder.glob(f"{DATABASE}*"))

    def check_room(self) -> None:
        """Refuse a new session while the slot has all the bytes that it may have.

        Raises:
            StoreFullError: names the limit.
        """
        limit = self.rules.max_bytes
        if limit is not None and (used := self.used_bytes) >= limit:
            raise StoreFullError(
                f"the store takes {used} bytes, and may take {limit}",
                hint="delete sessions that were collected, or raise --store-max-bytes",
                retry_after_s=FULL_RETRY_S,
            )

    def find_state(self, session_id: SessionId) -> StoredState | None:
        """The state of a session; None where the store has never had it, or has forgotten it."""
        return self._states.get(session_id)

    async def create(self, session_id: SessionId, opening: SessionOpening) -> StoredSession:
        """Store the opening of a session.

        Raises:
            StoreWriteError: it could not be stored, and there is no session.
        """
        stored, opened = self.begin_session(session_id, opening)
        await opened
        return stored

    def begin_session(
        self, session_id: SessionId, opening: SessionOpening
    ) -> tuple[StoredSession, asyncio.Future[Any]]:
        """Begin to store the opening of a session; whatever is stored for the session from now on stands behind it.

        Returns:
            The session, and the write of its opening: where that fails with a ``StoreWriteError``, there is no session.
        """
        tail = SessionTail(session_id, self._next_number, Tail(changed_at=opening.at))
        self._next_number += 1
        opened = self._begin(AppendEvents(tail, [opening]))
        opened.add_done_callback(partial(self._note_opened, session_id))
        self._states[session_id] = StoredState.OPEN
        return self._hold(StoredSession(self, tail)), opened

    def _note_opened(self, session_id: SessionId, opened: asyncio.Future[Any]) -> None:
        if opened.cancelled() or opened.exception() is not None:  # there is no such session
            self._states.pop(session_id, None)
            self._writing.pop(session_id, None)

    async def load(
        self, session_id: SessionId, rows: RowReading = RowReading.STORED
    ) -> tuple[LoadedSession, StoredSession]:
        """Load a session, to go on with it. What cannot be read of it is set aside, reported and counted.

        Raises:
            SessionNotFoundError: the store has no records of it.
            StoreRecordError: its opening cannot be read.
        """
        loaded = await asyncio.to_thread(self.reader.load_session, session_id, rows)
        held = self._writing.get(session_id)
        if held is not None:
            return loaded, held
        tail = SessionTail(session_id, loaded.line.number, loaded.tail, loaded.shared)
        if loaded.torn:
            self.torn_sessions += 1
            self.skipped_records += loaded.skipped
            logger.error("%s; %d records are set aside", loaded.torn, loaded.skipped)
            is_closed = any(isinstance(event, SessionClosed) for event in loaded.events)
            await self.submit(SetAside(tail, loaded.torn, is_closed=is_closed))
        for lost in loaded.lost_payloads:
            logger.error("session %s: rows are lost: %s", session_id, lost)
        return loaded, self._hold(StoredSession(self, tail))

    def release(self, session_id: SessionId) -> None:
        """Forget what is held to write a session; loading it takes it up again."""
        self._writing.pop(session_id, None)

    async def expire(self, session_id: SessionId, at: float) -> None:
        """Close a session; its records stay."""
        await self.begin_expiry(session_id, at)

    def begin_expiry(self, session_id: SessionId, at: float) -> asyncio.Future[Any]:
        """Begin to close a session, and return the write; an expiry that is lost happens again."""
        write = self._begin(self._build_end(session_id, StoredState.EXPIRED, at, keeps_records=True))
        self._note_end(session_id, StoredState.EXPIRED)
        return write

    async def delete(self, session_id: SessionId, at: float, *, keeps_records: bool = False) -> None:
        """Delete a session for good: its id stays, its records go unless they are to be kept."""
        await self.begin_deletion(session_id, at, keeps_records=keeps_records)

    def begin_deletion(self, session_id: SessionId, at: float, *, keeps_records: bool = False) -> asyncio.Future[Any]:
        """Begin to delete a session for good: its id stays, its records go unless they are to be kept.

        Returns:
            The write; it fails with a ``StoreWriteError``.
        """
        write = self._begin(self._build_end(session_id, StoredState.DELETED, at, keeps_records=keeps_records))
        self._note_end(session_id, StoredState.DELETED)
        return write

    # Receipts.

    async def add_receipt(self, session_id: SessionId, receipt: str, turns: int, at: float) -> None:
        """Store that the first so many turns of a session were collected, under the digest of the payload."""
        await self.submit(AddReceipt(session_id, receipt, turns, at))

    async def acknowledge(self, session_id: SessionId, receipt: str, at: float) -> int | None:
        """Store that a trainer has what a receipt stands for.

        Returns:
            How many turns, from the first on, the receipt stands for; None where there is no such receipt.
        """
        return await self.submit(Acknowledge(session_id, receipt, at))

    # Keeping.

    async def apply_retention(
        self, rules: RetentionRules, now: float, in_use: Collection[SessionId] = ()
    ) -> list[StoredLine]:
        """Remove the sessions that are kept no longer, and forget old tombstones.

        Args:
            rules: how long, and how much, is kept.
            now: Unix seconds.
            in_use: sessions that are not to go.

        Returns:
            What was removed, in that order.
        """
        lines = await asyncio.to_thread(self.reader.list_sessions)
        removals = choose_removals(lines, rules, now=now, used_bytes=self.used_bytes, in_use={*in_use, *self._writing})
        for line in removals:
            lost = line.turns - max(line.collected_turns, line.acknowledged_turns)
            if lost > 0 and line.state is not StoredState.DELETED:
                self._removed_uncollected += 1
                logger.warning(
                    "session %s is removed from the store, and %d of its turns were never collected", line.id, lost
                )
            else:
                self._removed_collected += 1
            await self.delete(line.id, now)
        for session_id in await self.submit(ForgetTombstones(now - rules.tombstone_s)):
            self._states.pop(session_id, None)
        return removals

    def vacuum(self) -> int:
        """Give the free pages of the database back to the file system, all at once. Nothing is written meanwhile.

        A store that was started has to be started again behind it.

        Returns:
            The bytes that were given back.
        """
        self.writer.pause()
        before = self.used_bytes
        self.writer.checkpoint(pages=0)
        self.writer.truncate_log()
        return before - self.used_bytes

    def describe(self) -> JsonObject:
        """Describe the store for ``/health``."""
        return {
            "sqlite": SQLITE_VERSION,
            "durability": str(self.rules.durability),
            "row_durability": str(self.rules.row_durability),
            "sessions": len(self._states),
            "used_bytes": self.used_bytes,
            "failure": self.writer.failure,
            "failed_writes": self.writer.failed_jobs,
            "moved_aside": self.moved_aside,
            "torn_sessions": self.torn_sessions,
            "skipped_records": self.skipped_records,
        }

    def measure(self) -> StoreMeasures:
        """Measure the slot; reads the sizes of the database's files."""
        return StoreMeasures(
            sessions=len(self._states),
            used_bytes=self.used_bytes,
            waiting_jobs=self.writer.waiting_jobs,
            stored_jobs=self.writer.stored_jobs,
            stored_groups=self.writer.stored_groups,
            storing_s=self.writer.storing_s,
            failed_jobs=self.writer.failed_jobs,
            removed_collected=self._removed_collected,
            removed_uncollected=self._removed_uncollected,
            torn_sessions=self.torn_sessions,
            skipped_records=self.skipped_records,
        )

    async def close(self) -> None:
        """Store what waits, and give the slot back."""
        await asyncio.to_thread(self.writer.stop)
        self.reader.close()
        self._lock.release()

    # Writing.

    async def submit(self, job: Job) -> Any:
        """Have a job stored, and wait for its result."""
        return await self._begin(job)

    def _begin(self, job: Job) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.writer.submit(job, future)
        return future

    def submit_later(self, job: Job) -> None:
        """Have a job stored that nobody waits for."""
        self.writer.submit(job)

    def _build_end(self, session_id: SessionId, state: StoredState, at: float, *, keeps_records: bool) -> EndSession:
        held = self._writing.get(session_id)
        return EndSession(session_id, state, at, tail=None if held is None else held.tail, keeps_records=keeps_records)

    def _note_end(self, session_id: SessionId, state: StoredState) -> None:
        self._states[session_id] = state
        self._writing.pop(session_id, None)

    def _hold(self, session: StoredSession) -> StoredSession:
        return self._writing.setdefault(session.id, session)

    def _recover(self) -> None:
        """Read which sessions there are, and remove row files that no session has any more."""
        lines = self.reader.list_sessions()
        self._states = {line.id: line.state for line in lines}
        self._next_number = max((line.number for line in lines), default=0) + 1
        kept = {line.id for line in lines if line.events}
        for session_id in self.rows.list_sessions():
            if session_id not in kept:
                self.rows.remove(session_id)
        self.rows.measure()
