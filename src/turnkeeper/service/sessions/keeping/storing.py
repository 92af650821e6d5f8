"""Keeps sessions in a store: see ``turnkeeper.store`` for what a stored turn survives."""

import asyncio
import logging
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from turnkeeper.choices import StoredState
from turnkeeper.clock import Clock
from turnkeeper.core import Event, Session, Turn, fold
from turnkeeper.core.event import ReplyDelivered, SessionClosed, TokensDropped, TurnCommitted
from turnkeeper.errors import SessionNotFoundError, StoreWriteError
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.matching import Matcher
from turnkeeper.service.sessions.entry import SessionEntry
from turnkeeper.service.sessions.keeping import KeptSession
from turnkeeper.service.sessions.keeping.rows import RowSearch
from turnkeeper.service.sessions.listing import KeptRow, SessionQuery
from turnkeeper.service.sessions.receipts import Receipt, find_furthest
from turnkeeper.service.sessions.settings import parse_new_session
from turnkeeper.store import (
    LoadedSession,
    RetentionRules,
    SessionOpening,
    SessionStore,
    StoredReceipt,
    StoredSession,
    StoreMeasures,
)
from turnkeeper.telemetry import SessionEndReason

logger = logging.getLogger("turnkeeper.store")

RETENTION_INTERVAL_S = 300.0
"""How often sessions are looked for that are kept no longer."""


class StoreKeeper:
    """Keeps the sessions of one process in its slot of a store."""

    outlives_process = True

    def __init__(
        self,
        store: SessionStore,
        matcher: Matcher,
        *,
        clock: Clock,
        retention: RetentionRules,
        keeps_deleted: bool = False,
    ) -> None:
        """Keep sessions in this slot.

        Args:
            store: the slot, which is open and writes.
            matcher: the matcher of the server's sessions.
            clock: the server's, for the list of sessions and for what is kept no longer.
            retention: how long sessions are kept.
            keeps_deleted: whether the records of deleted sessions stay until they are too old.
        """
        self._store = store
        self._matcher = matcher
        self._clock = clock
        self._retention = retention
        self._keeps_deleted = keeps_deleted
        self._since_epoch_s = clock.unix() - clock.now()
        self._written: dict[SessionId, StoredSession] = {}
        self._unsettled: dict[SessionId, asyncio.Future[Any]] = {}

    @property
    def hash_key(self) -> bytes:
        """The key of the hashes of session keys, which the store was made with."""
        return bytes.fromhex(self._store.manifest.secret)

    def check_room(self) -> None:
        """Refuse a new session while the slot has all the bytes that it may have."""
        self._store.check_room()

    def find_state(self, session_id: SessionId) -> StoredState | None:
        """Find the state of a session in the slot's index."""
        return self._store.find_state(session_id)

    def open(self, entry: SessionEntry) -> None:
        """Hand the opening over; what is stored for the session from now on stands behind it."""
        self._written[entry.id], opened = self._store.begin_session(entry.id, _describe_opening(entry))
        self._wait_for(entry.id, opened)

    def _wait_for(self, session_id: SessionId, write: asyncio.Future[Any]) -> None:
        self._unsettled[session_id] = write
        write.add_done_callback(partial(self._note_settled, session_id))

    def _note_settled(self, session_id: SessionId, write: asyncio.Future[Any]) -> None:
        if self._unsettled.get(session_id) is write:
            del self._unsettled[session_id]
        if not write.cancelled() and (error := write.exception()) is not None:
            logger.error("session %s: %s", session_id, error)

    async def settle(self, session_id: SessionId) -> None:
        """Wait until the write that was handed over last is stored; cancelling the wait does not cancel the write."""
        write = self._unsettled.get(session_id)
        if write is not None:
            await asyncio.shield(write)

    async def store_turn(self, entry: SessionEntry, turn: Turn) -> None:
        """Store the turn, and let its rows go from memory."""
        stored = self._written.get(entry.id)
        if stored is None:
            raise StoreWriteError(f"session {entry.id} is not in the store", hint="the session was deleted meanwhile")
        places = await stored.commit(TurnCommitted(at=turn.committed_at, turn=turn))
        for run, place in zip(turn.completion.channel_runs, places, strict=True):
            run.move(stored.read_run(place))

    def note(self, session_id: SessionId, event: Event) -> None:
        """Store drops, deliveries and closings with whatever is stored next. A server that stops closes no session."""
        stored = self._written.get(session_id)
        is_kept = isinstance(event, TokensDropped | ReplyDelivered | SessionClosed)
        if stored is not None and is_kept and not _is_end_of_server(event):
            stored.note(event)

    async def load(self, session_id: SessionId) -> KeptSession | None:
        """Load a session, its rows left in their file."""
        try:
            loaded, stored = await self._store.load(session_id)
        except SessionNotFoundError:
            return None
        self._written[session_id] = stored
        return await asyncio.to_thread(self._restore, loaded)

    def _restore(self, loaded: LoadedSession) -> KeptSession:
        receipts = self._store.reader.list_receipts(loaded.line.id)
        return restore_session(loaded, receipts, matcher=self._matcher)

    async def find_rows(
        self, query: SessionQuery, behind: tuple[float, str] | None, in_memory: Collection[str]
    ) -> list[KeptRow]:
        """Find them in the slot's index."""
        search = RowSearch(
            query=query,
            behind=behind,
            in_memory=in_memory,
            find_state=self._store.find_state,
            now=self._clock.unix(),
            since_epoch_s=self._since_epoch_s,
        )
        return await asyncio.to_thread(search.find, self._store.reader)

    async def add_receipt(self, entry: SessionEntry, receipt: Receipt, *, at: float) -> None:
        """Store the receipt."""
        await self._store.add_receipt(entry.id, receipt.digest, receipt.turns, at)

    async def find_receipt(self, entry: SessionEntry, digest: str) -> Receipt | None:
        """Read the session's receipts."""
        receipts = await asyncio.to_thread(self._store.reader.list_receipts, entry.id)
        return next((_read_receipt(each) for each in receipts if each.receipt == digest), None)

    async def acknowledge(self, entry: SessionEntry, digest: str, *, at: float) -> Receipt | None:
        """Store it, where the receipt is in the store."""
        turns = await self._store.acknowledge(entry.id, digest, at)
        return None if turns is None else Receipt(digest=digest, turns=turns, is_acknowledged=True)

    def expire(self, session_id: SessionId, *, at: float) -> None:
        """Close the session in the store; its records stay."""
        self._written.pop(session_id, None)
        self._wait_for(session_id, self._store.begin_expiry(session_id, at))

    def delete(self, session_id: SessionId, *, at: float) -> None:
        """Hand the end over; nothing more is stored for the session."""
        self._written.pop(session_id, None)
        self._wait_for(session_id, self._store.begin_deletion(session_id, at, keeps_records=self._keeps_deleted))

    def describe(self) -> JsonObject:
        """Describe the slot for ``/health``."""
        return self._store.describe()

    def measure(self) -> StoreMeasures:
        """Measure the slot for metrics."""
        return self._store.measure()

    async def run(self) -> None:
        """Remove from time to time what is kept no longer."""
        while True:
            removed = await self._store.apply_retention(self._retention, self._clock.unix())
            if removed:
                logger.info("removed %d sessions from the store that are kept no longer", len(removed))
            await self._clock.sleep(RETENTION_INTERVAL_S)

    async def close(self) -> None:
        """Store what waits, and give the slot back."""
        await self._store.close()


def restore_session(loaded: LoadedSession, receipts: Iterable[StoredReceipt], *, matcher: Matcher) -> KeptSession:
    """Make of what is stored of a session what a server goes on with."""
    session = fold(loaded.events, matcher=matcher)
    opening = loaded.opening
    return KeptSession(
        session=session,
        settings=parse_new_session(dict(opening.settings)),
        ttl_s=opening.ttl_s,
        limit_tokens=opening.limit_tokens,
        key_hash=opening.key_hash,
        opened_at=opening.at,
        changed_at=loaded.line.changed_at,
        undelivered=frozenset(_list_undelivered(session)),
        collected_turns=min(loaded.line.collected_turns, loaded.tail.turns),
        acknowledged=find_furthest(_read_receipt(each, most=loaded.tail.turns) for each in receipts),
    )


def _read_receipt(stored: StoredReceipt, *, most: int | None = None) -> Receipt:
    """Read a receipt; of a session that is torn it stands for no turn that cannot be read."""
    turns = stored.turns if most is None else min(stored.turns, most)
    return Receipt(digest=stored.receipt, turns=turns, is_acknowledged=stored.acknowledged_at is not None)


def _is_end_of_server(event: Event) -> bool:
    return isinstance(event, SessionClosed) and event.reason == SessionEndReason.KEPT


def _list_undelivered(session: Session) -> Iterable[TurnId]:
    return (turn.id for turn in session.forest.turns if not session.is_delivered(turn.id))


def _describe_opening(entry: SessionEntry) -> SessionOpening:
    """Describe a session by its opening; the id is its name in the store, and its settings are the request's body."""
    (event,) = entry.session.events[:1]
    return SessionOpening(
        event=event,  # pyright: ignore[reportArgumentType] - a session's first event is its opening
        settings=entry.settings.model_dump(mode="json", exclude_defaults=True),
        ttl_s=entry.ttl_s,
        limit_tokens=entry.limit_tokens,
        key_hash=None if entry.key is None else entry.key.hash,
    )
