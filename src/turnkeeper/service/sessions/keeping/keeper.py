"""The seam between the service and a store: where sessions are kept so that they outlive their process.

::

    open          a session is there once its opening is stored
    store_turn    a turn is visible once it is stored
    note          events that nobody waits for
    load          a session that this process does not have in memory
    find_rows     the sessions that it does not have in memory, as rows of the list
    delete        a deleted session stays deleted
    add_receipt   a collect is known by its receipt from now on
    settle        waits until an opening or an end is stored
"""

import asyncio
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from turnkeeper.choices import StoredState
from turnkeeper.core import Event, Session, Turn
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.sessions.entry import SessionEntry
from turnkeeper.service.sessions.listing import KeptRow, SessionQuery
from turnkeeper.service.sessions.receipts import Receipt
from turnkeeper.service.sessions.settings import NewSession

if TYPE_CHECKING:
    from turnkeeper.store import StoreMeasures


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptSession:
    """A session as a store has kept it."""

    session: Session
    settings: NewSession
    ttl_s: float
    limit_tokens: int | None
    key_hash: bytes | None = field(repr=False)
    opened_at: float
    """Unix seconds, as in the next field."""
    changed_at: float
    undelivered: Set[TurnId]
    """Turns of which nobody knows whether their reply was delivered."""
    collected_turns: int = 0
    """How many turns, from the first on, a collect has had."""
    acknowledged: Receipt | None = None
    """The receipt with the most turns that a trainer has acknowledged."""


class SessionKeeper(Protocol):
    """Keeps the sessions of a server beyond the memory of its process."""

    @property
    def outlives_process(self) -> bool:
        """True where sessions are kept beyond the process."""
        ...

    @property
    def hash_key(self) -> bytes | None:
        """The key of the hashes of session keys that are kept, 32 bytes; None where none is kept."""
        ...

    def check_room(self) -> None:
        """Refuse a new session where there is no room to keep one.

        Raises:
            StoreFullError: names the limit.
        """
        ...

    def find_state(self, session_id: SessionId) -> StoredState | None:
        """Find the state of a session; None where the keeper never had the session, or has forgotten it."""
        ...

    def open(self, entry: SessionEntry) -> None:
        """Begin to keep a session that was just opened; ``settle`` tells whether it is kept."""
        ...

    async def store_turn(self, entry: SessionEntry, turn: Turn) -> None:
        """Keep a turn before it becomes visible; what is raised fails the turn and leaves the session as it was.

        Raises:
            StoreWriteError: the turn cannot be stored.
        """
        ...

    def note(self, session_id: SessionId, event: Event) -> None:
        """Keep an event that nobody waits for."""
        ...

    async def load(self, session_id: SessionId) -> KeptSession | None:
        """Load a session that is open; None where the session has ended meanwhile.

        Raises:
            StoreRecordError: the opening of the session cannot be read.
        """
        ...

    async def find_rows(
        self, query: SessionQuery, behind: tuple[float, str] | None, in_memory: Collection[str]
    ) -> Sequence[KeptRow]:
        """Find the rows of kept sessions that are not in memory; see ``listing.FindKept``."""
        ...

    def expire(self, session_id: SessionId, *, at: float) -> None:
        """Note that a session expired, at a time in Unix seconds."""
        ...

    def delete(self, session_id: SessionId, *, at: float) -> None:
        """Begin to delete a session for good, at a time in Unix seconds; ``settle`` tells whether that is kept."""
        ...

    async def add_receipt(self, entry: SessionEntry, receipt: Receipt, *, at: float) -> None:
        """Keep the receipt of a collect at a time in Unix seconds; one that is kept stays as it is.

        Raises:
            StoreWriteError: it cannot be kept.
        """
        ...

    async def find_receipt(self, entry: SessionEntry, digest: str) -> Receipt | None:
        """Find a receipt of a session; None where there is none."""
        ...

    async def acknowledge(self, entry: SessionEntry, digest: str, *, at: float) -> Receipt | None:
        """Keep that a trainer has what a receipt stands for, since a time in Unix seconds.

        Returns:
            The receipt; None where there is none.

        Raises:
            StoreWriteError: it cannot be kept.
        """
        ...

    async def settle(self, session_id: SessionId) -> None:
        """Wait until the opening or the end of a session is kept; return at once where neither is on its way.

        Raises:
            StoreWriteError: it cannot be kept. A session whose opening is not kept is none.
        """
        ...

    def describe(self) -> JsonObject | None:
        """Describe the store for ``/health``; None where there is none."""
        ...

    def measure(self) -> "StoreMeasures | None":
        """Measure the store for metrics; None where there is none."""
        ...

    async def run(self) -> None:
        """Remove from time to time what is kept no longer, until cancelled."""
        ...

    async def close(self) -> None:
        """Finish what was handed over, and let the store go."""
        ...


class MemoryKeeper:
    """Keeps nothing: sessions live as long as their process."""

    outlives_process = False
    hash_key = None

    def check_room(self) -> None:
        """Memory has limits of its own."""

    def find_state(self, session_id: SessionId) -> StoredState | None:
        """Know no session."""
        return None

    def open(self, entry: SessionEntry) -> None:
        """Keep nothing."""

    async def store_turn(self, entry: SessionEntry, turn: Turn) -> None:
        """Keep nothing."""

    def note(self, session_id: SessionId, event: Event) -> None:
        """Keep nothing."""

    async def load(self, session_id: SessionId) -> KeptSession | None:
        """Have no session."""
        return None

    async def find_rows(
        self, query: SessionQuery, behind: tuple[float, str] | None, in_memory: Collection[str]
    ) -> Sequence[KeptRow]:
        """Have no session."""
        return ()

    def expire(self, session_id: SessionId, *, at: float) -> None:
        """Keep nothing."""

    def delete(self, session_id: SessionId, *, at: float) -> None:
        """Keep nothing."""

    async def add_receipt(self, entry: SessionEntry, receipt: Receipt, *, at: float) -> None:
        """Keep the receipt with the session."""
        entry.add_receipt(receipt)

    async def find_receipt(self, entry: SessionEntry, digest: str) -> Receipt | None:
        """Find the receipt among those of the session that are held."""
        return entry.receipts.find(digest)

    async def acknowledge(self, entry: SessionEntry, digest: str, *, at: float) -> Receipt | None:
        """Note it with the session."""
        return entry.receipts.acknowledge(digest)

    async def settle(self, session_id: SessionId) -> None:
        """Return at once."""

    def describe(self) -> None:
        """Describe no store."""

    def measure(self) -> None:
        """Measure no store."""

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Have nothing to finish."""
