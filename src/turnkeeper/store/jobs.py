"""What the writer can do, each as a job: prepared, then inserted in one transaction with others, then kept or dropped.

::

    prepare     encode, write rows; a job that fails here fails alone
    insert      inside the transaction; where one fails, all are dropped, and each is tried alone
    keep        behind the transaction
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, select

from turnkeeper.choices import StoredState
from turnkeeper.core.event import SessionClosed
from turnkeeper.ids import SessionId
from turnkeeper.store.codec import StoredEvent
from turnkeeper.store.database import get_driver
from turnkeeper.store.faults import CrashPoint, Reach
from turnkeeper.store.opening import SessionOpening
from turnkeeper.store.payload import pack_places
from turnkeeper.store.rowfile import RowFiles
from turnkeeper.store.tables import EVENTS, INSERT_EVENT, RECEIPTS, SESSIONS, SET_ASIDE, UPDATE_TAIL
from turnkeeper.store.tail import PlacedEvent, SessionTail


class Job:
    """One write, from a request of the event loop to its result."""

    result: Any = None
    size_bytes: int = 512
    """Roughly what it adds to the database's log."""

    def prepare(self, rows: RowFiles) -> None:
        """Do what goes before the transaction."""

    def insert(self, connection: Connection, reach: Reach) -> None:
        """Write inside the transaction."""

    def keep(self, rows: RowFiles) -> None:
        """Note that the write is stored."""

    def drop(self) -> None:
        """Note that the transaction failed; the job may be prepared again."""

    def fail(self) -> None:
        """Note that the write failed for good, because of the disk."""


class AppendEvents(Job):
    """Appends events to a session: all of them, or none. Its result is where the payloads of the last one stand."""

    def __init__(self, tail: SessionTail, events: Sequence[StoredEvent], *, is_awaited: bool = True) -> None:
        """Append events.

        Args:
            tail: the end of the session's records.
            events: what to append, at most one turn.
            is_awaited: False where nobody waits: what cannot be written goes with the session's next write.
        """
        self._tail = tail
        self._events = events
        self._is_awaited = is_awaited
        self._earlier: Sequence[StoredEvent] = ()
        self._placed: list[PlacedEvent] = []

    def prepare(self, rows: RowFiles) -> None:
        """Encode the events and write their rows."""
        tail = self._tail
        self._earlier, mark = tuple(tail.unwritten), tail.mark()
        try:
            self._placed = [tail.place(event) for event in (*self._earlier, *self._events)]
            for placed in self._placed:
                if placed.payload_places:
                    rows.write(tail.id, placed.encoded.payloads, placed.payload_places)
        except BaseException:
            tail.undo(mark)
            raise
        tail.unwritten = []
        self.size_bytes = tail.draft.record_bytes - mark[0].record_bytes + Job.size_bytes

    def insert(self, connection: Connection, reach: Reach) -> None:
        """Insert the records, and bring the session's line up to date."""
        reach(CrashPoint.BEFORE_INSERT)
        tail, driver = self._tail, get_driver(connection)
        for event, placed in zip((*self._earlier, *self._events), self._placed, strict=True):
            if isinstance(event, SessionOpening):
                self._insert_session(connection, event)
            record, places = placed.encoded.record, pack_places(placed.payload_places)
            driver.execute(INSERT_EVENT, (tail.number, placed.place, record, places))
            if isinstance(event, SessionClosed):
                self._note_closed(connection)
        reach(CrashPoint.AFTER_INSERT)
        driver.execute(UPDATE_TAIL, _list_counts(tail))

    def _insert_session(self, connection: Connection, opening: SessionOpening) -> None:
        connection.execute(
            SESSIONS.insert().values(
                number=self._tail.number,
                id=self._tail.id,
                state=StoredState.OPEN.value,
                opened_at=opening.at,
                changed_at=opening.at,
                ttl_s=opening.ttl_s,
                events=0,
                turns=0,
                sampled_tokens=0,
                record_bytes=0,
                row_bytes=0,
            )
        )

    def _note_closed(self, connection: Connection) -> None:
        which = and_(SESSIONS.c.number == self._tail.number, SESSIONS.c.state == StoredState.OPEN.value)
        connection.execute(SESSIONS.update().where(which).values(state=StoredState.CLOSED.value))

    def keep(self, rows: RowFiles) -> None:
        """Move the end of the session's records."""
        self._tail.keep()
        self.result = self._placed[-1].payload_places

    def drop(self) -> None:
        """Leave the end where it was."""
        self._tail.drop()
        self._tail.unwritten = [*self._earlier, *self._tail.unwritten]

    def fail(self) -> None:
        """Keep events that nobody waits for, for the session's next write; without its opening there is no session."""
        if any(isinstance(event, SessionOpening) for event in self._events):
            self._tail.end()
        elif not self._is_awaited:
            self._tail.unwritten = [*self._tail.unwritten, *self._events]


class EndSession(Job):
    """Marks a session as expired or deleted, and removes its records where they are not to stay."""

    def __init__(
        self, session_id: SessionId, state: StoredState, at: float, *, tail: SessionTail | None, keeps_records: bool
    ) -> None:
        self._id = session_id
        self._state = state
        self._at = at
        self._tail = tail
        self._keeps_records = keeps_records
        self._freed = 0

    def prepare(self, rows: RowFiles) -> None:
        """Refuse every later write for the session."""
        if self._tail is not None:
            self._tail.is_ended = True

    def drop(self) -> None:
        """Take writes for the session again, since its end was not stored."""
        if self._tail is not None:
            self._tail.is_ended = False

    def insert(self, connection: Connection, reach: Reach) -> None:
        """Mark the session's line, and remove its records."""
        reach(CrashPoint.BEFORE_INSERT)
        ended: dict[str, Any] = {"state": self._state.value, "ended_at": self._at}
        if not self._keeps_records:
            number = select(SESSIONS.c.number).where(SESSIONS.c.id == self._id).scalar_subquery()
            connection.execute(EVENTS.delete().where(EVENTS.c.session == number))
            connection.execute(RECEIPTS.delete().where(RECEIPTS.c.session == number))
            connection.execute(SET_ASIDE.delete().where(SET_ASIDE.c.session == number))
            line = connection.execute(select(SESSIONS.c.row_bytes).where(SESSIONS.c.id == self._id)).first()
            self._freed = line.row_bytes if line is not None else 0
            ended |= {"events": 0, "record_bytes": 0, "row_bytes": 0}
        reach(CrashPoint.AFTER_INSERT)
        not_deleted = and_(SESSIONS.c.id == self._id, SESSIONS.c.state != StoredState.DELETED.value)
        which = SESSIONS.c.id == self._id if self._state is StoredState.DELETED else not_deleted
        connection.execute(SESSIONS.update().where(which).values(ended))

    def keep(self, rows: RowFiles) -> None:
        """Remove the row file; its bytes are the result."""
        if self._tail is not None:
            self._tail.end()
        if not self._keeps_records:
            rows.remove(self._id)
        self.result = self._freed


class AddReceipt(Job):
    """Notes that a session was collected."""

    def __init__(self, session_id: SessionId, receipt: str, turns: int, at: float) -> None:
        self._id = session_id
        self._receipt = receipt
        self._turns = turns
        self._at = at

    def insert(self, connection: Connection, reach: Reach) -> None:
        """Insert the receipt, unless it is there or the session was deleted."""
        reach(CrashPoint.BEFORE_INSERT)
        which = and_(SESSIONS.c.id == self._id, SESSIONS.c.state != StoredState.DELETED.value)
        number = connection.execute(select(SESSIONS.c.number).where(which)).scalar()
        if number is None:
            return
        connection.execute(
            RECEIPTS.insert()
            .prefix_with("OR IGNORE")
            .values(session=number, receipt=self._receipt, turns=self._turns, collected_at=self._at)
        )
        reach(CrashPoint.AFTER_INSERT)
        collected = func.max(SESSIONS.c.collected_turns, self._turns)
        connection.execute(SESSIONS.update().where(SESSIONS.c.number == number).values(collected_turns=collected))


class Acknowledge(Job):
    """Notes that a trainer has what a receipt stands for. Its result is the number of turns; None: no such receipt."""

    def __init__(self, session_id: SessionId, receipt: str, at: float) -> None:
        self._id = session_id
        self._receipt = receipt
        self._at = at
        self._found: int | None = None

    def insert(self, connection: Connection, reach: Reach) -> None:
        """Note the time of the first acknowledgement."""
        reach(CrashPoint.BEFORE_INSERT)
        found = connection.execute(
            select(RECEIPTS.c.session, RECEIPTS.c.turns)
            .join(SESSIONS, SESSIONS.c.number == RECEIPTS.c.session)
            .where(SESSIONS.c.id == self._id, RECEIPTS.c.receipt == self._receipt)
        ).first()
        self._found = None if found is None else found.turns
        if found is None:
            return
        which = and_(RECEIPTS.c.session == found.session, RECEIPTS.c.receipt == self._receipt)
        connection.execute(
            RECEIPTS.update().where(which, RECEIPTS.c.acknowledged_at.is_(None)).values(acknowledged_at=self._at)
        )
        reach(CrashPoint.AFTER_INSERT)
        turns = func.max(SESSIONS.c.acknowledged_turns, found.turns)
        connection.execute(SESSIONS.update().where(SESSIONS.c.number == found.session).values(acknowledged_turns=turns))

    def keep(self, rows: RowFiles) -> None:
        """The receipt is known, or it is not."""
        self.result = self._found


class SetAside(Job):
    """Moves the records of a session from one on to where nothing reads them, so that others can take their places.

    Receipts that stand for turns among them stand for those before from now on.
    """

    def __init__(self, tail: SessionTail, reason: str, *, is_closed: bool) -> None:
        """Set aside what stands behind the stored end.

        Args:
            tail: the end.
            reason: why it is not read.
            is_closed: whether the session takes no further turns by what stands before.
        """
        self._tail = tail
        self._reason = reason
        self._is_closed = is_closed

    def insert(self, connection: Connection, reach: Reach) -> None:
        """Move the records, and bring the session's line up to date."""
        reach(CrashPoint.BEFORE_INSERT)
        end = self._tail.draft
        which = and_(EVENTS.c.session == self._tail.number, EVENTS.c.place >= end.events)
        for row in connection.execute(select(EVENTS).where(which)).mappings().all():
            connection.execute(SET_ASIDE.insert().values(**row, reason=self._reason))
        connection.execute(EVENTS.delete().where(which))
        self._correct_line(connection, end.turns)
        reach(CrashPoint.AFTER_INSERT)
        get_driver(connection).execute(UPDATE_TAIL, _list_counts(self._tail))

    def _correct_line(self, connection: Connection, turns: int) -> None:
        """Let receipts stand for the turns that are left: others will get the numbers of those that are gone."""
        longer = and_(RECEIPTS.c.session == self._tail.number, RECEIPTS.c.turns > turns)
        connection.execute(RECEIPTS.update().where(longer).values(turns=turns))
        if not self._is_closed:
            closed = and_(SESSIONS.c.number == self._tail.number, SESSIONS.c.state == StoredState.CLOSED.value)
            connection.execute(SESSIONS.update().where(closed).values(state=StoredState.OPEN.value))
        counts = {name: func.min(SESSIONS.c[name], turns) for name in ("collected_turns", "acknowledged_turns")}
        connection.execute(SESSIONS.update().where(SESSIONS.c.number == self._tail.number).values(counts))


class ForgetTombstones(Job):
    """Removes the lines of sessions that were deleted long ago and have no records. Its result is their ids."""

    def __init__(self, before: float) -> None:
        """Forget what was deleted before a time, in Unix seconds."""
        self._before = before

    def insert(self, connection: Connection, reach: Reach) -> None:
        """Remove the lines."""
        reach(CrashPoint.BEFORE_INSERT)
        gone = and_(
            SESSIONS.c.state == StoredState.DELETED.value, SESSIONS.c.events == 0, SESSIONS.c.ended_at < self._before
        )
        self.result = connection.execute(select(SESSIONS.c.id).where(gone)).scalars().all()
        connection.execute(SESSIONS.delete().where(gone))


def _list_counts(tail: SessionTail) -> tuple[float, ...]:
    """The parameters of ``UPDATE_TAIL``."""
    end = tail.draft
    return end.changed_at, end.events, end.turns, end.sampled_tokens, end.record_bytes, end.row_bytes, tail.number
