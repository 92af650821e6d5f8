"""Sessions as a service: what the front doors call.

Composes the registry, the turns and the samples. Sessions are pure and live in one event loop, so nothing here takes a
lock, and nothing is held while an engine works. Heavy reading runs in threads over values that never change.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from turnkeeper.access import Caller, Grant
from turnkeeper.clock import Clock
from turnkeeper.core import Ledger, Query, TurnRequest
from turnkeeper.dialects.known_body import KnownBody
from turnkeeper.dialects.repetition import KnownRequest
from turnkeeper.errors import ReceiptUnknownError, RequestError, StoreWriteError
from turnkeeper.generation import Gate
from turnkeeper.ids import SessionId, parse_session_id
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.logs import LogEvent
from turnkeeper.metrics import Metrics
from turnkeeper.samples import Collection, Reward, SamplesPayload
from turnkeeper.service.sessions import (
    KeptKey,
    KeyRing,
    MemoryLimiter,
    NewSession,
    Registry,
    SessionEntry,
    SessionFactory,
    SessionQuery,
    SessionReader,
    close_session,
)
from turnkeeper.service.sessions.keeping import SessionKeeper
from turnkeeper.service.sessions.receipts import Receipt
from turnkeeper.service.turns import TurnService, Waiter
from turnkeeper.telemetry import SamplesAcknowledged, SamplesCollected, SessionEndReason

logger = logging.getLogger("turnkeeper.sessions")

ALL_SESSIONS = SessionQuery()

ABORTED = "all turns were aborted"
"""Why a session takes no further turns behind an abort."""

SWEEP_INTERVAL_S = 30.0
"""How often idle sessions are looked for. One that is asked for expires at its time in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSession:
    """A session that was just opened."""

    id: SessionId
    key: str | None = field(default=None, repr=False)
    """The key that opens the session to an agent, shown only here; None where the server has no keys."""


class SessionService:
    """All sessions of one process."""

    def __init__(
        self,
        *,
        registry: Registry,
        factory: SessionFactory,
        turns: TurnService,
        reader: SessionReader,
        memory: MemoryLimiter,
        keys: KeyRing,
        gate: Gate,
        metrics: Metrics,
        clock: Clock,
        keeper: SessionKeeper,
        auto_create: bool,
    ) -> None:
        """Serve the sessions of a registry.

        Args:
            registry: the sessions by id.
            factory: opens sessions.
            turns: takes the turns.
            reader: reads records and samples.
            memory: keeps sessions under their memory limit.
            keys: the keys of the server and of the sessions.
            gate: ends every turn in flight.
            metrics: counts what is collected and what ends.
            clock: the time by which sessions expire.
            keeper: keeps sessions beyond the process.
            auto_create: whether a turn opens the session that its path names.
        """
        self._registry = registry
        self._factory = factory
        self._turns = turns
        self._reader = reader
        self._memory = memory
        self._keys = keys
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._keeper = keeper
        self._auto_create = auto_create
        self._recalls: dict[SessionId, asyncio.Lock] = {}

    # Sessions.

    async def recall(self, texts: Iterable[str]) -> None:
        """Take the sessions of these ids out of the store, where they are there and not in memory.

        Raises:
            StoreRecordError: the records of a session cannot be read.
        """
        for text in texts:
            session_id = parse_session_id(text)
            if session_id is not None and self._is_stored_only(session_id):
                await self._recall(session_id)

    def _is_stored_only(self, session_id: SessionId) -> bool:
        state = self._keeper.find_state(session_id)
        return state is not None and state.is_served and self._registry.find(session_id, self._clock.now()) is None

    async def _recall(self, session_id: SessionId) -> None:
        lock = self._recalls.setdefault(session_id, asyncio.Lock())
        try:
            async with lock:  # a session is loaded once, however many requests ask for it
                kept = await self._keeper.load(session_id) if self._is_stored_only(session_id) else None
                if kept is not None and self._is_stored_only(session_id):  # else another request was faster
                    self._factory.restore(session_id, kept)
        finally:
            self._recalls.pop(session_id, None)

    async def settle(self, session_id: SessionId) -> None:
        """Wait until the opening or the end of a session is stored, where sessions are stored.

        Raises:
            StoreWriteError: it cannot be stored; a session whose opening is not stored is gone.
        """
        try:
            await self._keeper.settle(session_id)
        except StoreWriteError:
            entry = self._registry.find(session_id, self._clock.now())
            if entry is not None:
                self._registry.discard(entry)
                close_session(entry, SessionEndReason.NOT_STORED, self._metrics)
            raise

    def create(self, new: NewSession) -> CreatedSession:
        """Open a session.

        A creator that draws the session's id may repeat the request: while the session is as it was opened, the
        answer is that session, on a server with keys under a new key in place of the one before.

        Raises:
            RequestError: the id is that of another session.
            CapacityError: there are as many as there may be.
            ServerDrainingError: the server is stopping.
        """
        entry = self._find_repeated(new)
        session_id = self._reserve_id(new) if entry is None else entry.id
        issued = None
        if self._keys.has_admin_keys:
            issued = self._keys.issue(Grant(session_id=session_id, scopes=new.granted))
        kept = None if issued is None else issued.kept
        if entry is None:
            self._factory.open(session_id, new, key=kept)
        else:
            entry.key = kept
        return CreatedSession(id=session_id, key=None if issued is None else issued.text)

    def _find_repeated(self, new: NewSession) -> SessionEntry | None:
        """Find the session that an equal request has opened and nobody has used."""
        entry = None if new.session_id is None else self._registry.find(new.session_id, self._clock.now())
        is_untouched = entry is not None and entry.is_idle and not len(entry.session.forest)
        return entry if entry is not None and is_untouched and entry.settings == new else None

    def _reserve_id(self, new: NewSession) -> SessionId:
        self._factory.check_room()
        if new.session_id is None:
            return self._registry.draw_id()
        self._registry.check_unused(new.session_id, self._clock.now())
        return new.session_id

    def identify(self, keys: Iterable[str]) -> Caller:
        """Identify the caller by the keys of a request; where the server has no keys, every caller is its admin."""
        return self._keys.identify(keys, self._find_key)

    def _find_key(self, session_id: SessionId) -> KeptKey | None:
        entry = self._registry.find(session_id, self._clock.now())
        return None if entry is None else entry.key

    async def list_sessions(self, query: SessionQuery = ALL_SESSIONS) -> JsonObject:
        """List a page of sessions, those in a store too, with the cursor behind which the next page begins.

        Raises:
            RequestError: the cursor is none of the query's order.
        """
        return await self._reader.list_page(self._registry, query, self._keeper.find_rows)

    def get_session_id(self, text: str) -> SessionId:
        """Return the id of a session that exists.

        Raises:
            SessionNotFoundError: there is none.
        """
        return self._registry.get(text, self._clock.now()).id

    def get_turn_session_id(self, text: str) -> SessionId:
        """Return the id of a session that exists, or that a turn may open.

        Raises:
            SessionNotFoundError: there is none.
        """
        return self._find_creatable(text) or self.get_session_id(text)

    def _find_creatable(self, text: str) -> SessionId | None:
        """Return the id of a session that does not exist and that a turn would open; None where there is no such id."""
        if not self._auto_create:
            return None
        return self._registry.find_unused(text, self._clock.now())

    def find_replies(self, session_id: str) -> Callable[[str], Message | None]:
        """Return a function that finds a delivered assistant message by the id of its reply, in any thread.

        The function returns None where the session delivered no reply under that id.

        Raises:
            SessionNotFoundError: there is no such session, and a turn would not open it.
        """
        if self._find_creatable(session_id) is not None:
            return lambda _: None
        return self._registry.get(session_id, self._clock.now()).find_reply

    def find_known(self, session_id: str) -> KnownRequest | None:
        """Return what is known of the last request of a session, where anything is."""
        entry = self._registry.find(SessionId(session_id), self._clock.now())
        return None if entry is None else entry.known

    async def describe(
        self, session_id: str, *, with_rows: bool = False, with_branches: bool = False, is_admin: bool = True
    ) -> bytes:
        """Build the JSON of ``GET /sessions/{id}``; see `SessionReader.describe`."""
        with self.use(session_id) as entry:
            return await self._reader.describe(
                entry, with_rows=with_rows, with_branches=with_branches, is_admin=is_admin
            )

    def delete(self, session_id: str) -> None:
        """End a session at once; its turns in flight are abandoned and record nothing afterwards.

        Raises:
            SessionNotFoundError: there is none; one that expired is gone and needs no error.
        """
        now = self._clock.now()
        if self._registry.has_expired(session_id, now):
            return
        entry = self._registry.get(session_id, now)
        self._registry.remove(entry, now)
        close_session(entry, SessionEndReason.DELETED, self._metrics)
        self._keeper.delete(entry.id, at=self._clock.unix())

    # Turns.

    async def begin_turn(
        self,
        session_id: str,
        request: TurnRequest,
        response_id: str,
        query: Query | None = None,
        body: KnownBody | None = None,
    ) -> Waiter:
        """Begin a turn of a session, and open the session where turns may do that; see ``TurnService.begin``.

        Raises:
            SessionNotFoundError: there is no such session.
            RequestError: what is refused without the engine.
        """
        if (unused := self._find_creatable(session_id)) is not None:
            self._factory.check_room()
            self._factory.open(unused, NewSession())
        try:
            with self.use(session_id) as entry:
                await self.settle(entry.id)
                return await self._turns.begin(entry, request, response_id, query, body)
        except Exception:
            if unused is not None:
                self._discard(unused)
            raise

    def _discard(self, session_id: SessionId) -> None:
        """Forget a session whose first turn was refused, unless another request uses it; a next turn may open it."""
        entry = self._registry.find(session_id, self._clock.now())
        if entry is not None and entry.is_idle and not len(entry.session.forest):
            self._registry.discard(entry)
            close_session(entry, SessionEndReason.FIRST_TURN_REFUSED, self._metrics)
            self._keeper.delete(entry.id, at=self._clock.unix())

    async def count_tokens(self, session_id: str, request: TurnRequest, query: Query | None = None) -> int:
        """Count the tokens that the prompt of a turn would have, without changing the session.

        Raises:
            RequestError: what the turn would be refused for.
        """
        at = self._clock.unix()
        if self._find_creatable(session_id) is not None:  # a turn would open it; to count, nothing has to be kept
            new = NewSession()
            session, limit_tokens = self._factory.build_session(new), self._factory.choose_limit(new)
            return await self._turns.count_tokens(session, request, at=at, limit_tokens=limit_tokens, query=query)
        with self.use(session_id) as entry:
            return await self._turns.count_tokens(
                entry.session, request, at=at, limit_tokens=entry.limit_tokens, query=query
            )

    # Samples and the rest.

    async def collect(
        self,
        session_id: str,
        *,
        max_seq_len: int | None = None,
        agent_metadata: JsonObject | None = None,
        rewards: Mapping[str, Reward] | None = None,
        since: str | None = None,
    ) -> SamplesPayload:
        """Collect the training samples of a session. Repeating it gives equal bytes, until a receipt is acknowledged.

        The payload has its receipt, unless the receipt cannot be stored.

        Args:
            session_id: of the session.
            max_seq_len: the token limit of a sample; None leaves it to the session.
            agent_metadata: the trainer's own data.
            rewards: rewards of single turns, by the id of their reply.
            since: an acknowledged receipt, whose turns come along without loss.

        Raises:
            RequestError: a reward names no turn, or several; or the receipt was not acknowledged.
            ReceiptUnknownError: no collect of the session has the receipt.
            AssemblyError: the turns do not make samples.
        """
        with self.use(session_id) as entry:
            began = self._clock.now()
            collection = await self._reader.collect(
                entry,
                max_seq_len=max_seq_len,
                agent_metadata=agent_metadata,
                rewards=rewards,
                since=None if since is None else await self._get_acknowledged(entry, since),
            )
            self._count_collected(entry, collection)
            entry.drop_prompt_text()  # a session that was collected seldom goes on
            payload = await asyncio.to_thread(_encode, collection)
            payload = await self._keep_receipt(entry, payload, turns=len(collection.turn_ledgers))
            self._report_collected(entry, collection, payload, self._clock.now() - began)
            return payload

    async def _get_acknowledged(self, entry: SessionEntry, digest: str) -> Receipt:
        """Return a receipt that was acknowledged.

        What is collected since then gets a receipt that stands for its turns as well, so that no trainer may lack them.
        """
        receipt = await self._keeper.find_receipt(entry, digest)
        if receipt is None:
            raise _build_unknown(entry, digest)
        if not receipt.is_acknowledged:
            raise RequestError(
                f"since: the receipt {digest} was not acknowledged",
                hint=f"POST /sessions/{entry.id}/ack with the receipt says that you have its samples",
                param="since",
            )
        return receipt

    async def _keep_receipt(self, entry: SessionEntry, payload: SamplesPayload, *, turns: int) -> SamplesPayload:
        """Keep the receipt of a payload; where it cannot be kept the trainer gets its samples all the same."""
        assert payload.receipt is not None
        receipt = Receipt(digest=payload.receipt, turns=turns)
        try:
            await self._keeper.add_receipt(entry, receipt, at=self._clock.unix())
        except StoreWriteError as error:
            logger.warning("session %s is collected without a receipt: %s", entry.id, error)
            return replace(payload, receipt=None)
        return payload

    async def acknowledge(self, session_id: str, digest: str) -> Receipt:
        """Keep that a trainer has the samples of a receipt; repeating it changes nothing.

        Raises:
            ReceiptUnknownError: no collect of the session has the receipt.
            StoreWriteError: it cannot be stored.
        """
        with self.use(session_id) as entry:
            receipt = await self._keeper.acknowledge(entry, digest, at=self._clock.unix())
            if receipt is None:
                raise _build_unknown(entry, digest)
            entry.note_acknowledged(receipt)
            at = self._clock.unix()
            entry.reports.publish(
                SamplesAcknowledged(at=at, session_id=entry.id, receipt=receipt.digest, turns=receipt.turns)
            )
            return receipt

    def _report_collected(
        self, entry: SessionEntry, collection: Collection, payload: SamplesPayload, seconds: float
    ) -> None:
        report = SamplesCollected(
            at=self._clock.unix(),
            session_id=entry.id,
            samples=len(collection.samples),
            trainable_tokens=collection.ledger.trainable,
            size_bytes=payload.size_bytes,
            seconds=seconds,
            receipt=payload.receipt,
        )
        entry.reports.publish(report)

    def _count_collected(self, entry: SessionEntry, collection: Collection) -> None:
        """Count the tokens and the dropped leaves that no earlier collect of the session has counted."""
        known, fresh = entry.collected_turns, collection.turn_ledgers[entry.collected_turns :]
        entry.collected_turns += len(fresh)
        noncanonical = sum(known <= turn < entry.collected_turns for turn in entry.noncanonical)
        self._metrics.count("turnkeeper_noncanonical_turns", noncanonical)
        self._metrics.record_collect(sum(fresh, Ledger()))
        for leaf in collection.dropped_leaves:
            if leaf.turn_id not in entry.dropped_leaves:
                entry.dropped_leaves.add(leaf.turn_id)
                self._metrics.count("turnkeeper_leaves_dropped", cause=leaf.cause)
                by = None if leaf.rollback is None else leaf.rollback.by
                logger.info(LogEvent("leaf_dropped", session=entry.id, turn=leaf.turn_id, cause=leaf.cause, by=by))

    def abort_all(self) -> int:
        """End every turn in flight for good, and let the sessions that exist take no further turns.

        Returns:
            The number of sessions.
        """
        logger.info(LogEvent("turns_aborted", sessions=len(self._registry), turns=self._registry.count_turns()))
        for entry in self._registry:
            entry.after_recording(partial(self._close_to_turns, entry))
        self._gate.abort_turns()
        return len(self._registry)

    def _close_to_turns(self, entry: SessionEntry) -> None:
        if entry.session.closed_as is None:
            logger.info(LogEvent("session_closed", session=entry.id, reason=ABORTED))
        entry.session.close(ABORTED, at=self._clock.unix())
        entry.publish()

    def sweep(self) -> int:
        """Expire the sessions that were idle for longer than their time to live, and return their number."""
        return self._registry.sweep(self._clock.now())

    async def sweep_forever(self) -> None:
        """Expire idle sessions from time to time, and move rows to disk where memory is short."""
        while True:
            await self._clock.sleep(SWEEP_INTERVAL_S)
            self.sweep()
            self._memory.relieve()

    async def close(self) -> None:
        """End every session in this process; turns that are being recorded are recorded."""
        reason = SessionEndReason.KEPT if self._keeper.outlives_process else SessionEndReason.SERVER_STOPS
        for entry in tuple(self._registry):
            close_session(entry, reason, self._metrics)

    @contextmanager
    def use(self, session_id: str) -> Generator[SessionEntry]:
        """Look up a session, and keep the session from expiring while the block runs."""
        entry = self._registry.get(session_id, self._clock.now())
        entry.busy += 1
        try:
            yield entry
        finally:
            entry.busy -= 1
            entry.touch()
            self._memory.relieve()


def _encode(collection: Collection) -> SamplesPayload:
    """Encode the reply to a collect, and compute its receipt, which reads all of its bytes."""
    payload = collection.encode()
    return replace(payload, receipt=payload.compute_receipt())


def _build_unknown(entry: SessionEntry, digest: str) -> ReceiptUnknownError:
    return ReceiptUnknownError(
        f"no collect of session {entry.id} has the receipt {digest[:64]!r}",
        hint="the receipt of a collect is the header x-turnkeeper-receipt of its reply",
    )
