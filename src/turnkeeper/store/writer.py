"""The one writer of a slot: a thread with its own connection, which stores whatever has gathered.

::

    take all jobs that wait  ->  rows written  ->  one transaction  ->  everyone is told

While one group is being stored the next one gathers, so that groups grow with the load and no turn waits for a timer. A
job that fails fails alone. Jobs are done in the order in which they came.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from turnkeeper.choices import Durability
from turnkeeper.errors import SessionClosedError
from turnkeeper.store.database import explain_failure, get_driver, write_facts, writing
from turnkeeper.store.faults import CrashPoint, Reach, go_on
from turnkeeper.store.jobs import Job
from turnkeeper.store.rowfile import RowFiles

logger = logging.getLogger("turnkeeper.store")

CHECKPOINT_BYTES = 4 << 20
"""What is stored before the database's log is copied into the database."""
MAX_GROUP = 512
"""The most jobs of one group, so that nobody waits for more."""
LINGER_S = 0.25
"""For how long jobs that nobody waits for are held."""
VACUUM_PAGES = 1024
"""The pages that are given back to the file system at a time."""


class Ticket:
    """A job and whoever waits for it."""

    def __init__(self, job: Job, future: asyncio.Future[Any] | None) -> None:
        self.job = job
        self.future = future
        self.error: Exception | None = None

    def tell(self) -> None:
        """Resolve the future, in its event loop; one that was cancelled is left alone."""
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.job.result)


class SlotWriter:
    """Stores jobs in their order, in groups."""

    def __init__(
        self,
        connection: Connection,
        rows: RowFiles,
        *,
        row_durability: Durability,
        reach: Reach = go_on,
    ) -> None:
        """Begin to write.

        Args:
            connection: the only connection that writes; closed at the end.
            rows: the row files.
            row_durability: whether rows are synced for each group.
            reach: called at each step of a write.
        """
        self._connection = connection
        self._rows = rows
        self._row_durability = row_durability
        self._reach = reach
        self._queue: SimpleQueue[Ticket | None] = SimpleQueue()
        self._thread: Thread | None = None
        self.failure = ""
        """Why the last write failed; empty after one that was stored."""
        self.failed_jobs = 0
        self.stored_groups = 0
        self.stored_jobs = 0
        self.storing_s = 0.0
        """The time that the stored groups took, rows and syncs included."""
        self._since_checkpoint = 0

    @property
    def waiting_jobs(self) -> int:
        """The number of jobs that wait for the thread."""
        return self._queue.qsize()

    def start(self) -> None:
        """Start the thread."""
        self._thread = Thread(target=self._run, name="turnkeeper-store", daemon=True)
        self._thread.start()

    def submit(self, job: Job, future: asyncio.Future[Any] | None = None) -> None:
        """Take a job; the future, if there is one, gets its result or its error once it is stored or not.

        Cancelling the future does not cancel the job.
        """
        self._queue.put(Ticket(job, future))

    def pause(self) -> None:
        """Store what waits and end the thread, where it runs; ``start`` begins another. Blocks."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def stop(self) -> None:
        """Store what waits, end the thread and close the connection. Blocks; call it in a thread."""
        self.pause()
        self.close()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            group, is_over = self._take()
            if group:
                self.write(group)
                _tell(group, self._reach)
                self.tidy()

    def _take(self) -> tuple[list[Ticket], bool]:
        """Wait for a job, then take all that wait; True with the last of them.

        A group for which nobody waits is held for a moment, so that it goes with one for which somebody does.
        """
        group: list[Ticket] = []
        until, is_urgent = 0.0, False
        ticket = self._queue.get()
        while ticket is not None:
            group.append(ticket)
            until = until or time.monotonic() + LINGER_S
            is_urgent = is_urgent or ticket.future is not None
            if len(group) == MAX_GROUP:
                return group, False
            try:
                ticket = self._queue.get(timeout=0 if is_urgent else max(0.0, until - time.monotonic()))
            except Empty:
                return group, False
        return group, True

    def write(self, group: Sequence[Ticket]) -> None:
        """Store a group in one transaction; where that fails, each of its jobs in one of its own."""
        self._reach(CrashPoint.GROUP_GATHERED)
        began = time.monotonic()
        ready = [ticket for ticket in group if self._prepare(ticket)]
        if not ready:
            return
        try:
            self._store(ready)
        except Exception as error:
            for ticket in reversed(ready):
                ticket.job.drop()
            if len(ready) > 1:
                for ticket in ready:
                    self.write([ticket])
            else:
                self._fail(ready[0], error)
            return
        self.storing_s += time.monotonic() - began
        self.stored_groups += 1
        self.stored_jobs += len(ready)
        self._since_checkpoint += sum(ticket.job.size_bytes for ticket in ready)
        self.failure = ""
        for ticket in ready:
            self._keep(ticket)

    def _prepare(self, ticket: Ticket) -> bool:
        try:
            ticket.job.prepare(self._rows)
        except Exception as error:
            self._fail(ticket, error)
            return False
        return True

    def _store(self, ready: Sequence[Ticket]) -> None:
        self._reach(CrashPoint.AFTER_ROWS)
        if self._row_durability is Durability.SYNC:
            self._rows.sync()
            self._reach(CrashPoint.AFTER_ROWS_SYNC)
        else:
            self._rows.forget()
        with writing(self._connection):
            self._reach(CrashPoint.TRANSACTION_BEGUN)
            for ticket in ready:
                ticket.job.insert(self._connection, self._reach)
            self._reach(CrashPoint.BEFORE_COMMIT)
        self._reach(CrashPoint.AFTER_COMMIT)

    def _keep(self, ticket: Ticket) -> None:
        """What is stored is stored, whatever happens to a file that is to go."""
        try:
            ticket.job.keep(self._rows)
        except OSError as error:
            logger.warning("a file of the store could not be removed: %s", error)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        is_disk = isinstance(error, OSError | DBAPIError | sqlite3.Error)
        ticket.error = explain_failure(error) if is_disk else error
        self.failed_jobs += 1
        if is_disk:
            ticket.job.fail()
            self.failure = ticket.error.args[0]
            logger.error("%s", ticket.error)
        elif ticket.future is None and not isinstance(error, SessionClosedError):
            logger.error("an event could not be stored: %r", error)

    def tidy(self) -> None:
        """Do what nobody waits for, behind a group: copy the log into the database, give free pages back."""
        if self._since_checkpoint < CHECKPOINT_BYTES:
            return
        try:
            self.checkpoint()
        except (OSError, DBAPIError, sqlite3.Error) as error:
            self.failure = str(explain_failure(error))
            logger.warning("%s", self.failure)

    def checkpoint(self, pages: int = VACUUM_PAGES) -> None:
        """Copy the log into the database, as far as no reader needs it, and give back so many free pages; 0 for all."""
        self._reach(CrashPoint.BEFORE_CHECKPOINT)
        driver = get_driver(self._connection)
        driver.executescript(f"PRAGMA incremental_vacuum({pages})")  # execute would end behind the first page
        driver.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._since_checkpoint = 0
        self._reach(CrashPoint.AFTER_CHECKPOINT)

    def truncate_log(self) -> None:
        """Copy all of the log into the database and empty it, once no reader needs it."""
        get_driver(self._connection).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Note that the database was closed in order, and close it; the last connection copies the log into it."""
        self._reach(CrashPoint.BEFORE_CLOSE)
        try:
            write_facts(self._connection, closed="1")
        except DBAPIError as error:
            logger.warning("%s", explain_failure(error))
        self._connection.close()


def _tell(group: Sequence[Ticket], reach: Reach) -> None:
    """Resolve all futures, with one call for each event loop."""
    waiting: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
    for ticket in group:
        if ticket.future is not None:
            waiting.setdefault(ticket.future.get_loop(), []).append(ticket)
    for loop, tickets in waiting.items():
        half = len(tickets) // 2
        try:
            if half:
                loop.call_soon_threadsafe(_tell_all, tickets[:half])
                reach(CrashPoint.HALF_TOLD)
            loop.call_soon_threadsafe(_tell_all, tickets[half:])
        except RuntimeError:
            logger.warning("%d writes were stored after their event loop had ended", len(tickets))


def _tell_all(tickets: Sequence[Ticket]) -> None:
    for ticket in tickets:
        ticket.tell()
