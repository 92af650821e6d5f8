"""One session as the service holds it: the pure session, its settings, and what is in flight.

Owns the session's times, its memory account and the order of its recordings; who may change what is decided in
``turns`` and ``registry``.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.clock import Clock
from turnkeeper.core.accounting import DropReason
from turnkeeper.core.session import Session
from turnkeeper.core.turn import Turn
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.jsontypes import JsonObject, is_array, is_object
from turnkeeper.service.in_flight import TurnInFlight
from turnkeeper.service.publish import Publisher
from turnkeeper.service.settings import NewSession


@dataclass(slots=True, eq=False)
class MemoryAccount:
    """What all sessions together take; each session keeps its part up to date."""

    used_bytes: int = 0
    """In memory."""
    spilled_bytes: int = 0
    """On disk."""
    movable: dict[SessionId, "SessionEntry"] = field(default_factory=dict[SessionId, "SessionEntry"])
    """The sessions with routing rows in memory, the one idle longest first."""


@dataclass(slots=True, kw_only=True, eq=False)
class SessionEntry:
    """One session and what happens to it right now."""

    id: SessionId
    session: Session
    settings: NewSession
    clock: Clock
    publisher: Publisher
    created_at: float
    """Unix seconds."""
    used_at: float
    """Unix seconds when its last request ended."""
    ttl_s: float
    memory: MemoryAccount
    limit_tokens: int | None
    """Token limit of a path; None for none."""
    busy: int = 0
    """Requests of any kind that are being answered."""
    in_flight: dict[int, TurnInFlight] = field(default_factory=dict[int, TurnInFlight])
    """Turns in flight, by the number of their pending turn."""
    by_digest: dict[str, list[TurnId]] = field(default_factory=dict[str, list[TurnId]])
    """The turns of each request digest, in commit order."""
    by_response: dict[str, TurnId] = field(default_factory=dict[str, TurnId])
    """The turn of each reply, by the id under which the reply was delivered."""
    lost: set[TurnId] = field(default_factory=set[TurnId])
    """Turns whose reply was cut off on its way and never delivered since."""
    mismatches: dict[TurnId, list[JsonObject] | None] = field(default_factory=dict[TurnId, list[JsonObject] | None])
    """What was found of paths, by their last turn; None where one cannot be compared."""
    published: int = 0
    """How many of its session's events were handed on."""
    collected_turns: int = 0
    """How many turns, from the first on, were there when samples were last collected."""
    dropped_leaves: set[TurnId] = field(default_factory=set[TurnId])
    """The leaves that a collect left out of its samples; each is counted and logged once."""
    spilled_turns: int = 0
    """How many turns, from the first on, have their rows on disk."""
    spilled_bytes: int = 0
    """What those rows take on disk."""
    size_bytes: int = 0
    """What its turns take in memory."""
    row_bytes: int = 0
    """What of ``size_bytes`` are routing rows."""
    is_released: bool = False
    """Whether the session ended, so that nothing counts for it any more."""
    _recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    _recordings: int = 0
    _after_recording: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, so that it may be evicted."""
        return not self.busy and not self.in_flight

    def is_expired(self, now: float) -> bool:
        """Whether it was idle for longer than its time to live."""
        return self.is_idle and now - self.used_at >= self.ttl_s

    def touch(self) -> None:
        """Note that a request ended just now: the time to live begins anew."""
        self.used_at = self.clock.now()
        self.memory.movable.pop(self.id, None)
        if self.row_bytes:
            self.memory.movable[self.id] = self

    def publish(self) -> None:
        """Hand on the events that happened since the last time."""
        events = self.session.events
        start, self.published = self.published, len(events)
        for event in events[start:]:
            self.publisher.publish(self.id, event)

    def drop(self, reason: DropReason, sampled_tokens: int) -> None:
        """Account for sampled tokens that no turn holds."""
        self.session.drop(reason, sampled_tokens, at=self.clock.unix())

    def add_turn(self, turn: Turn) -> None:
        """Note a committed turn for retries and for the memory account."""
        self.by_digest.setdefault(turn.request.digest, []).append(turn.id)
        self.by_response[turn.completion.response_id] = turn.id
        rows = turn.completion.rows
        self._grow(measure_turn(turn), 0, rows.size_bytes if rows is not None else 0)

    def note_written(self, turn_id: TurnId, *, was_written: bool) -> None:
        """Note that the reply of a turn was written to a client in full, or cut off."""
        self.touch()
        if was_written:
            self.lost.discard(turn_id)
            self.session.mark_delivered(turn_id, at=self.clock.unix())
            self.publish()
        elif not self.session.is_delivered(turn_id):
            self.lost.add(turn_id)

    # Recording.

    @property
    def is_recording(self) -> bool:
        """Whether a turn is being recorded."""
        return self._recordings > 0

    @asynccontextmanager
    async def recording(self) -> AsyncGenerator[None]:
        """Hold the session's place for one recording; the next one waits for its end."""
        self._recordings += 1
        try:
            async with self._recording:
                yield
        finally:
            self._recordings -= 1
            while self._after_recording and not self.is_recording:
                self._after_recording.pop(0)()

    async def wait_until_recorded(self) -> None:
        """Wait until the turns that are being recorded now are recorded or failed."""
        async with self._recording:
            pass

    def after_recording(self, action: Callable[[], None]) -> None:
        """Do something as soon as no turn is being recorded: now, where none is."""
        if self.is_recording:
            self._after_recording.append(action)
        else:
            action()

    # Memory.

    def note_spilled(self, turns: int, size_bytes: int) -> None:
        """Note that the rows of the first turns are on disk now."""
        self.spilled_turns = turns
        self._grow(-size_bytes, size_bytes, -size_bytes)

    def release(self) -> None:
        """The session ended: it takes nothing any more, whatever is still being moved or recorded for it."""
        self._grow(-self.size_bytes, -self.spilled_bytes, -self.row_bytes)
        self.is_released = True
        self.memory.movable.pop(self.id, None)

    def count_uncollected(self) -> int:
        """Tokens of turns that no collect has seen."""
        turns = self.session.forest.turns[self.collected_turns :]
        return sum(len(turn.completion.ids) for turn in turns)

    def _grow(self, in_memory: int, on_disk: int, rows: int) -> None:
        if self.is_released:
            return
        self.size_bytes += in_memory
        self.spilled_bytes += on_disk
        self.row_bytes += rows
        self.memory.used_bytes += in_memory
        self.memory.spilled_bytes += on_disk


_PLACE_BYTES, _PAIR_BYTES = 48, 120
"""A tuple, and a pair of a whole number and a double with its place in one, as CPython holds them."""


def measure_turn(turn: Turn) -> int:
    """What a turn takes in memory, in bytes: arrays exactly, texts by their length, the rest by a constant."""
    completion = turn.completion
    arrays = turn.prompt.ids.nbytes + completion.ids.nbytes + completion.logprobs.nbytes
    rows = completion.rows.size_bytes if completion.rows is not None else 0
    indexer = completion.indexer_rows.nbytes if completion.indexer_rows is not None else 0
    texts = sum(_measure_text(message) for message in (*turn.messages, completion.message))
    tops = sum(_PLACE_BYTES + _PAIR_BYTES * len(place) for place in completion.top_logprobs or ())
    return arrays + rows + indexer + texts + tops + 2048


def _measure_text(value: Any) -> int:
    if isinstance(value, str):
        return len(value) + 50
    if is_object(value):
        return sum(_measure_text(item) for item in value.values()) + 100
    return sum(_measure_text(item) for item in value) + 60 if is_array(value) else 30
