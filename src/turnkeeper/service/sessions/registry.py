"""Holds the sessions of this process by id, with limits, expiry and tombstones.

A session expires once it was idle for its time to live, counted from the end of its last request. An expired one
leaves a tombstone, so that stragglers learn what happened. Nothing that is in flight is ever evicted.
"""

from collections.abc import Callable, Iterator

from turnkeeper.choices import StoredState
from turnkeeper.errors import CapacityError, RequestError, SessionExpiredError, SessionNotFoundError
from turnkeeper.ids import SessionId, build_session_id, parse_session_id
from turnkeeper.service.sessions.entry import SessionEntry

MAX_TOMBSTONES = 100_000
"""Beyond it the oldest are forgotten: their sessions become unknown a little early."""


class Registry:
    """Sessions by id. The clock's time comes in as an argument."""

    def __init__(
        self,
        *,
        max_sessions: int,
        tombstone_ttl_s: float,
        token_bytes: Callable[[int], bytes],
        on_expire: Callable[[SessionEntry], None] = lambda _: None,
        find_state: Callable[[SessionId], StoredState | None] = lambda _: None,
    ) -> None:
        """Make an empty registry.

        Args:
            max_sessions: how many there may be at a time.
            tombstone_ttl_s: how long an expired session is remembered.
            token_bytes: a source of randomness that nobody can guess, such as ``secrets.token_bytes``.
            on_expire: called with each session that expires, once it can no longer be found.
            find_state: finds what a store knows of a session that is not in memory.
        """
        self._max_sessions = max_sessions
        self._tombstone_ttl_s = tombstone_ttl_s
        self._token_bytes = token_bytes
        self._on_expire = on_expire
        self._find_state = find_state
        self._entries: dict[SessionId, SessionEntry] = {}
        self._tombstones: dict[SessionId, float] = {}
        self._deleted: dict[SessionId, float] = {}

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._entries)

    def __iter__(self) -> Iterator[SessionEntry]:
        """Iterate over all sessions in the order of their creation."""
        return iter(self._entries.values())

    def count_turns(self) -> int:
        """Count the turns in flight of all sessions."""
        return sum(len(entry.in_flight) for entry in self)

    def count_held(self, *, outlive: bool) -> int:
        """Count the sessions that a drain waits for.

        Args:
            outlive: True where sessions outlive the process, so that only those in use are waited for; else those that
                have a turn to be collected as well.
        """
        return sum((not outlive and len(entry.session.forest) > 0) or not entry.is_idle for entry in self)

    def draw_id(self) -> SessionId:
        """Draw a fresh id that nobody can guess."""
        return build_session_id(self._token_bytes(16))

    def check_unused(self, session_id: SessionId, now: float) -> None:
        """Refuse an id that a session has or lately had.

        Raises:
            RequestError: it is taken.
        """
        if self.find_unused(session_id, now) is None:
            raise RequestError(
                f"session_id {session_id} is that of a session which exists, was deleted or expired",
                hint="draw another id; a session that exists needs not be opened again",
                param="session_id",
            )

    def check_room(self, now: float) -> None:
        """Refuse another session where there are enough.

        Raises:
            CapacityError: there are as many sessions as there may be, and none is expired.
        """
        if len(self._entries) >= self._max_sessions:
            self.sweep(now)
        if len(self._entries) >= self._max_sessions:
            raise CapacityError(
                f"there are {len(self._entries)} sessions, the limit is {self._max_sessions}",
                hint="delete sessions when their samples are collected, or raise --max-sessions",
                limit="max_sessions",
            )

    def add(self, entry: SessionEntry) -> None:
        """Take in a session under a reserved id."""
        self._entries[entry.id] = entry

    def find(self, session_id: SessionId, now: float) -> SessionEntry | None:
        """Find the session of this id; None where there is no such session or it has expired."""
        entry = self._entries.get(session_id)
        if entry is not None and entry.is_expired(now):
            self._expire(entry, now)
            return None
        return entry

    def get(self, text: str, now: float) -> SessionEntry:
        """Return the session of this id.

        Raises:
            SessionExpiredError: it was idle for too long.
            SessionNotFoundError: there is none.
        """
        session_id = parse_session_id(text)
        entry = self.find(session_id, now) if session_id else None
        if entry is not None:
            return entry
        if session_id is not None and self._is_buried(session_id, now):
            raise SessionExpiredError(f"session {text} expired: it was idle for longer than its time to live")
        raise SessionNotFoundError(f"there is no session {text[:64]!r}")

    def find_unused(self, text: str, now: float) -> SessionId | None:
        """Parse an id that no session has or lately had; None where the text is no such id."""
        session_id = parse_session_id(text)
        if session_id is None or session_id in self._entries or self._is_buried(session_id, now):
            return None
        is_used = session_id in self._deleted or self._find_state(session_id) is not None
        return None if is_used else session_id

    def discard(self, entry: SessionEntry) -> None:
        """Forget a session as if it had never been: its id may be used again."""
        self._entries.pop(entry.id, None)

    def remove(self, entry: SessionEntry, now: float) -> None:
        """Forget a session and everything about it but that its id was used."""
        if self._entries.pop(entry.id, None) is not None:
            _bury(self._deleted, entry.id, now)

    def has_expired(self, text: str, now: float) -> bool:
        """Tell whether an id is that of a session that expired lately."""
        session_id = parse_session_id(text)
        if session_id is None:
            return False
        self.find(session_id, now)
        return self._is_buried(session_id, now)

    def _is_buried(self, session_id: SessionId, now: float) -> bool:
        buried_at = self._tombstones.get(session_id)
        is_remembered = buried_at is not None and now - buried_at < self._tombstone_ttl_s
        return is_remembered or self._find_state(session_id) is StoredState.EXPIRED

    def sweep(self, now: float) -> int:
        """Expire what was idle for too long, and drop old tombstones; returns how many sessions expired."""
        expired = tuple(entry for entry in self._entries.values() if entry.is_expired(now))
        for entry in expired:
            self._expire(entry, now)
        for graves in (self._tombstones, self._deleted):
            for session_id in [each for each, at in graves.items() if now - at >= self._tombstone_ttl_s]:
                del graves[session_id]
        return len(expired)

    def _expire(self, entry: SessionEntry, now: float) -> None:
        del self._entries[entry.id]
        _bury(self._tombstones, entry.id, now)
        self._on_expire(entry)


def _bury(graves: dict[SessionId, float], session_id: SessionId, now: float) -> None:
    graves[session_id] = now
    while len(graves) > MAX_TOMBSTONES:
        del graves[next(iter(graves))]
