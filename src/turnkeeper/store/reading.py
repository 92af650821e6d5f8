"""What a slot holds, read in short transactions: the list of its sessions, one session's events, its receipts.

Listing reads one line a session and no record; loading one reads its records and leaves its rows where they
are. A session whose records are torn somewhere is what stands before that place: a turn refers to those before it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Engine, and_, case, literal, or_, select

from turnkeeper.channels import ItemRun
from turnkeeper.choices import StoredState
from turnkeeper.core.event import Event, TurnCommitted
from turnkeeper.errors import SessionNotFoundError, StoreRecordError
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.store.codec import SessionDecoder
from turnkeeper.store.opening import SessionOpening
from turnkeeper.store.payload import PayloadPlace, unpack_places
from turnkeeper.store.rowfile import RowFiles, StoredItems
from turnkeeper.store.tables import EVENTS, RECEIPTS, SESSIONS
from turnkeeper.store.tail import Tail

PAGE_SESSIONS = 500
"""How many sessions of a list are read at a time."""


class StoredOrder(StrEnum):
    """An order of stored sessions; those that are equal in it stand by id."""

    ID = "id"
    CREATED = "created"
    """The oldest first."""
    IDLE = "idle"
    """The one first whose last event is oldest."""
    BYTES = "bytes"
    """The one first that takes most of the disk."""


_ORDER_KEYS: Mapping[StoredOrder, ColumnElement[float]] = {
    StoredOrder.ID: literal(0.0),
    StoredOrder.CREATED: SESSIONS.c.opened_at,
    StoredOrder.IDLE: SESSIONS.c.changed_at,
    StoredOrder.BYTES: -(SESSIONS.c.record_bytes + SESSIONS.c.row_bytes),
}
"""What each order sorts by, before the id."""


class RowReading(StrEnum):
    """What is done about the payloads of a session that is loaded."""

    STORED = "stored"
    """They stay where they are: they are read when they are asked for, and checked then; now only the file's length
    is."""
    READ = "read"
    """They are read into memory and checked."""
    LEAVE_OUT = "leave_out"
    """The turns have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLine:
    """One session as a list shows it. Times are Unix seconds."""

    id: SessionId
    number: int
    """Its number in the database."""
    state: StoredState
    opened_at: float
    changed_at: float
    """When its last event happened."""
    ended_at: float | None
    """When it expired or was deleted; None while it is open."""
    ttl_s: float
    events: int
    turns: int
    sampled_tokens: int
    record_bytes: int
    row_bytes: int
    collected_turns: int
    """How many turns, from the first on, the largest collect had; 0 before the first."""
    acknowledged_turns: int
    """How many turns, from the first on, a trainer has acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    """One session of a list, with its opening, which is not read yet."""

    line: StoredLine
    key: float
    """What it is sorted by, before its id."""
    state: StoredState
    """Its state at the time of the list."""
    record: bytes = field(repr=False)
    """That of its opening; empty where it is missing."""

    @property
    def place(self) -> tuple[float, SessionId]:
        """Its place in the order."""
        return self.key, self.line.id

    def read_opening(self) -> SessionOpening:
        """Read how the session was opened.

        Raises:
            StoreRecordError: it cannot be read.
            StoreVersionError: a newer version wrote it.
        """
        opening = SessionDecoder().decode(self.record)
        if not isinstance(opening, SessionOpening):
            raise StoreRecordError(f"session {self.line.id}: its first record is not its opening")
        return opening


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReceipt:
    """One collect of a session."""

    receipt: str
    """The digest of the payload."""
    turns: int
    """How many turns, from the first on, there were."""
    collected_at: float
    acknowledged_at: float | None
    """When a trainer first said that it has the payload; None before."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedSession:
    """One session as its records tell it."""

    line: StoredLine
    opening: SessionOpening
    events: tuple[Event, ...]
    """All events, that of the opening first: what ``fold`` takes."""
    places: tuple[tuple[PayloadPlace, ...], ...]
    """For each turn, where its payloads stand."""
    tail: Tail = field(repr=False)
    """Where the next record goes."""
    shared: Sequence[JsonObject] = field(repr=False)
    """What its records share."""
    torn: str = ""
    """Why the records from ``tail.events`` on are left out; empty where all could be read."""
    lost_payloads: tuple[str, ...] = ()
    """What is missing of its rows; their turns are there."""

    @property
    def skipped(self) -> int:
        """The number of records that are left out."""
        return self.line.events - self.tail.events


class SlotReader:
    """Reads the database and the row files of a slot. Any thread may call it."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        """Read a slot.

        Args:
            engine: of ``open_reader``.
            folder: that of the row files.
        """
        self._engine = engine
        self._folder = folder

    def list_sessions(self) -> list[StoredLine]:
        """List all sessions, deleted ones too, in the order in which they were opened."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(SESSIONS).order_by(SESSIONS.c.number)).mappings().all()
        return [_read_line(row) for row in rows]

    def find_session(self, session_id: SessionId) -> StoredLine | None:
        """Find the line of a session; None where there is none."""
        with self._engine.connect() as connection:
            return _find_line(connection, session_id)

    def list_receipts(self, session_id: SessionId) -> list[StoredReceipt]:
        """List the collects of a session, in order."""
        columns = [column for column in RECEIPTS.c if column.name != "session"]
        query = select(*columns).join(SESSIONS, SESSIONS.c.number == RECEIPTS.c.session)
        query = query.where(SESSIONS.c.id == session_id).order_by(RECEIPTS.c.collected_at)
        with self._engine.connect() as connection:
            return [StoredReceipt(**row) for row in connection.execute(query).mappings()]

    def list_page(
        self,
        order: StoredOrder,
        *,
        states: Collection[StoredState],
        behind: tuple[float, str] | None = None,
        limit: int,
        now: float = -inf,
    ) -> list[ListedSession]:
        """List sessions that have records, as many as there may be on a page, in one query.

        Args:
            order: their order.
            states: only sessions in one of these states.
            behind: the place behind which the page begins; None for the first one.
            limit: the most sessions of the page.
            now: Unix seconds by which sessions without a request for longer than their time to live count as expired;
                without it each has the state that was stored.
        """
        key, lapsed = _ORDER_KEYS[order], SESSIONS.c.changed_at + SESSIONS.c.ttl_s <= now
        is_expired = and_(SESSIONS.c.state.in_([StoredState.OPEN, StoredState.CLOSED]), lapsed)
        state = case((is_expired, StoredState.EXPIRED), else_=SESSIONS.c.state)
        query = select(SESSIONS, key.label("key"), state.label("state_now"))
        query = query.where(SESSIONS.c.events > 0, state.in_(list(states)))
        if behind is not None:
            query = query.where(or_(key > behind[0], and_(key == behind[0], SESSIONS.c.id > behind[1])))
        page = query.order_by(key, SESSIONS.c.id).limit(limit).subquery()  # sorted before it has records
        opening = and_(EVENTS.c.session == page.c.number, EVENTS.c.place == 0)
        joined = select(page, EVENTS.c.record).join(EVENTS, opening, isouter=True).order_by(page.c.key, page.c.id)
        with self._engine.connect() as connection:
            rows = connection.execute(joined).mappings().all()
        return [_read_listed(row) for row in rows]

    def iter_pages(self, order: StoredOrder, *, states: Collection[StoredState]) -> Iterator[ListedSession]:
        """Iterate over sessions that have records, page by page, each in a transaction of its own."""
        behind: tuple[float, str] | None = None
        while page := self.list_page(order, states=states, behind=behind, limit=PAGE_SESSIONS):
            yield from page
            behind = page[-1].place

    def load_session(self, session_id: SessionId, rows: RowReading = RowReading.STORED) -> LoadedSession:
        """Load a session.

        Raises:
            SessionNotFoundError: the store has no records of it.
            StoreRecordError: its opening cannot be read.
            StoreVersionError: a newer version wrote a record of it.
        """
        with self._engine.connect() as connection:
            line = _find_line(connection, session_id)
            if line is None or not line.events:
                raise SessionNotFoundError(f"the store has no records of session {session_id}")
            records = connection.execute(
                select(EVENTS.c.place, EVENTS.c.record, EVENTS.c.payloads)
                .where(EVENTS.c.session == line.number)
                .order_by(EVENTS.c.place)
            ).all()
        return _Loading(line, RowFiles(self._folder), rows).load([tuple(row) for row in records])

    def close(self) -> None:
        """Close what is open."""
        self._engine.dispose()


class _Loading:
    """Makes one session of its records."""

    def __init__(self, line: StoredLine, files: RowFiles, rows: RowReading) -> None:
        self._line = line
        self._files = files
        self._rows = rows
        self._file = files.open(line.id)
        self._file_bytes = files.measure_session(line.id)
        self._decoder = SessionDecoder()
        self._lost: list[str] = []
        self._places: list[tuple[PayloadPlace, ...]] = []
        self._tail = Tail(changed_at=line.opened_at)

    def load(self, records: Sequence[tuple[int, bytes, bytes]]) -> LoadedSession:
        """Decode the records, up to the first that cannot be."""
        opening, events, torn = self._decode_opening(records), list[Event](), ""
        events.append(opening.event)
        for number, (place, record, payloads) in enumerate(records[1:], start=1):
            try:
                if place != number:
                    raise StoreRecordError(f"session {self._line.id}: record {number} is missing")
                events.append(self._decode(record, payloads))
            except StoreRecordError as error:
                torn = f"session {self._line.id}: record {number} of {len(records)}: {error.message}"
                break
        return LoadedSession(
            line=self._line,
            opening=opening,
            events=tuple(events),
            places=tuple(self._places),
            tail=self._tail,
            shared=tuple(self._decoder.shared),
            torn=torn,
            lost_payloads=tuple(self._lost),
        )

    def _decode_opening(self, records: Sequence[tuple[int, bytes, bytes]]) -> SessionOpening:
        place, record, _ = records[0] if records else (0, b"", b"")
        opening = self._decoder.decode(record)
        if place or not isinstance(opening, SessionOpening):
            raise StoreRecordError(f"session {self._line.id}: its first record is not its opening")
        self._advance(opening.at, record)
        return opening

    def _decode(self, record: bytes, payloads: bytes) -> Event:
        try:
            places = unpack_places(payloads)
        except (ValueError, TypeError) as error:
            raise StoreRecordError(f"the places of its payloads cannot be read: {error}") from error
        event = self._decoder.decode(record, lambda number: self._find_payload(places[number]))
        if isinstance(event, SessionOpening):
            raise StoreRecordError("it is a second opening")
        if isinstance(event, TurnCommitted):
            if event.turn.id != self._tail.turns:
                raise StoreRecordError(f"it is turn {event.turn.id}, and {self._tail.turns} was to follow")
            self._places.append(places)
        self._advance(event.at, record, event if isinstance(event, TurnCommitted) else None, places)
        return event

    def _find_payload(self, place: PayloadPlace) -> ItemRun | None:
        """The payload at a place, with a note where it is lost: then None, or items that nobody can read."""
        if self._rows is RowReading.LEAVE_OUT:
            return None
        try:
            if self._rows is RowReading.READ:
                return ItemRun(self._files.read(self._line.id, place))
            if self._file_bytes < place.stop:
                raise StoreRecordError(
                    f"{place.channel} at {place.offset}: the row file ends at {self._file_bytes}, before {place.stop}"
                )
        except StoreRecordError as error:
            self._lost.append(error.message)
            if self._rows is RowReading.READ:
                return None
        stored = StoredItems(self._file, place, is_checked=False)
        return ItemRun.stored(stored, shape=place.shape, dtype=np.dtype(place.dtype))

    def _advance(
        self, at: float, record: bytes, turn: TurnCommitted | None = None, places: Sequence[PayloadPlace] = ()
    ) -> None:
        tail = self._tail
        self._tail = Tail(
            changed_at=at,
            events=tail.events + 1,
            turns=tail.turns + (turn is not None),
            sampled_tokens=tail.sampled_tokens + (0 if turn is None else len(turn.turn.completion.ids)),
            record_bytes=tail.record_bytes + len(record),
            row_bytes=places[-1].stop if places else tail.row_bytes,
        )


def _find_line(connection: Connection, session_id: SessionId) -> StoredLine | None:
    row = connection.execute(select(SESSIONS).where(SESSIONS.c.id == session_id)).mappings().first()
    return None if row is None else _read_line(row)


def _read_line(row: Mapping[Any, Any]) -> StoredLine:
    fields: dict[str, Any] = {**row, "state": StoredState(row["state"])}
    return StoredLine(**fields)


def _read_listed(row: Mapping[Any, Any]) -> ListedSession:
    fields = dict(row)
    key, state, record = fields.pop("key"), StoredState(fields.pop("state_now")), fields.pop("record")
    return ListedSession(line=_read_line(fields), key=float(key), state=state, record=record or b"")
