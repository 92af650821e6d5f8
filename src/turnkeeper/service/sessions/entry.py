"""One session as the service holds it: the pure session, its settings, and what is in flight.

Owns the session's times, its memory account and the order of its recordings; who may change what is decided in
``turns`` and ``registry``.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from turnkeeper.clock import Clock
from turnkeeper.core.accounting import DropReason
from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.session import Session
from turnkeeper.core.turn import Turn
from turnkeeper.dialects.known_body import KnownBody
from turnkeeper.dialects.repetition import KnownRequest
from turnkeeper.engines import PromptText
from turnkeeper.ids import SessionId, TurnId
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.samples import Outcome
from turnkeeper.service.sessions.events import EventStream
from turnkeeper.service.sessions.footprint import (
    EVENT_BYTES,
    RECEIPT_BYTES,
    Part,
    measure_known,
    measure_pending,
    measure_rows,
    measure_settings,
    measure_turn,
    measure_value,
)
from turnkeeper.service.sessions.keys import KeptKey
from turnkeeper.service.sessions.receipts import Receipt, ReceiptBook
from turnkeeper.service.sessions.settings import NewSession
from turnkeeper.telemetry import ReportStream, TurnEnded, TurnTimes

if TYPE_CHECKING:
    from turnkeeper.service.turns import TurnInFlight

logger = logging.getLogger("turnkeeper.sessions")


PROMPT_TEXT_BYTES = 64 << 20
"""What the sessions may hold of the JSON of their prompts together: that of 130 sessions of 34,000 tokens."""


@dataclass(slots=True, eq=False)
class MemoryAccount:
    """The memory of all sessions together; each session keeps its part up to date."""

    used_bytes: int = 0
    """In memory."""
    spilled_bytes: int = 0
    """On disk."""
    movable: dict[SessionId, "SessionEntry"] = field(default_factory=dict[SessionId, "SessionEntry"])
    """The sessions with routing rows in memory, the one idle longest first."""
    written: dict[SessionId, "SessionEntry"] = field(default_factory=dict[SessionId, "SessionEntry"])
    """The sessions that hold the JSON of their last prompt, the one that has not used it for longest first."""
    written_bytes: int = 0
    """What that JSON takes in memory, a part of ``used_bytes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """What a recorded turn took."""

    times: TurnTimes
    engine_url: str
    """The engine that answered last."""
    engine_calls: int
    """The number of calls that the turn made to engines."""


@dataclass(slots=True, kw_only=True, eq=False)
class SessionEntry:
    """One session and what happens to it right now."""

    id: SessionId
    session: Session
    settings: NewSession
    clock: Clock
    event_stream: EventStream
    created_at: float
    """Unix seconds."""
    used_at: float
    """Unix seconds when its last request ended."""
    ttl_s: float
    memory: MemoryAccount
    reports: ReportStream
    """Takes the reports of its turns, and of its end."""
    limit_tokens: int | None
    """Token limit of a path; None for none."""
    key: KeptKey | None = None
    """The hash of the session's key and what the key opens; None where the session has no key."""
    busy: int = 0
    """Requests of any kind that are being answered."""
    in_flight: "dict[int, TurnInFlight]" = field(default_factory=dict[int, "TurnInFlight"])
    """Turns in flight, by the number of their pending turn."""
    by_digest: dict[str, list[TurnId]] = field(default_factory=dict[str, list[TurnId]])
    """The turns of each request digest, in commit order."""
    by_response: dict[str, TurnId] = field(default_factory=dict[str, TurnId])
    """The turn of each reply, by the id under which the reply was delivered."""
    lost: set[TurnId] = field(default_factory=set[TurnId])
    """Turns whose reply was cut off on its way and never delivered since."""
    unknown: set[TurnId] = field(default_factory=set[TurnId])
    """Turns of an earlier process of which nobody knows whether their reply was delivered."""
    mismatches: dict[TurnId, list[JsonObject] | None] = field(default_factory=dict[TurnId, list[JsonObject] | None])
    """The mismatches of each compared path, by the last turn of the path; None where a path cannot be compared."""
    noncanonical: dict[TurnId, int] = field(default_factory=dict[TurnId, int])
    """The turns whose ids are not canonical, each with the place of the first such id in its completion."""
    split_turns: int = 0
    """How many turns, from the first on, were looked at for that."""
    published: int = 0
    """How many of its session's events were handed on."""
    collected_turns: int = 0
    """How many turns, from the first on, were there when samples were last collected, by a process before as well."""
    receipts: ReceiptBook = field(default_factory=ReceiptBook)
    """The receipts of its collects, where no store holds them."""
    acknowledged: Receipt | None = None
    """The receipt with the most turns that a trainer has acknowledged."""
    outcome: "tuple[int, Outcome] | None" = None
    """What became of its tokens and leaves at the last collect, or what a forecast said, with the number of its
    session's events at that time: nothing has changed while that number stands."""
    dropped_leaves: set[TurnId] = field(default_factory=set[TurnId])
    """The leaves that a collect left out of its samples; each is counted and logged once."""
    spilled_turns: int = 0
    """How many turns, from the first on, have their rows on disk."""
    spilled_bytes: int = 0
    """The bytes of those rows on disk."""
    turn_costs: dict[TurnId, TurnCost] = field(default_factory=dict[TurnId, TurnCost])
    """What each recorded turn took."""
    known: KnownRequest | None = None
    """The last request as far as the next one is likely to repeat it; see ``dialects.repetition``."""
    known_new: int = 0
    """How many of its messages are held by no turn."""
    prompt_text: PromptText = field(default_factory=PromptText)
    """The JSON of its last prompt, from which the next engine call's is written."""
    held: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, 0))
    """The bytes that each part of the session takes in memory."""
    is_released: bool = False
    """True once the session has ended, so that nothing counts for it any more."""
    _measured_tools: int = 0
    _recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    _recordings: int = 0
    _after_recording: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def __post_init__(self) -> None:
        """Count what it takes without turns."""
        self._hold(Part.SETTINGS, measure_settings(self.settings))

    @property
    def is_idle(self) -> bool:
        """True while no request and no turn is in flight, so that the session may expire."""
        return not self.busy and not self.in_flight

    def is_expired(self, now: float) -> bool:
        """Tell whether the session was idle for longer than its time to live."""
        return self.is_idle and now - self.used_at >= self.ttl_s

    def touch(self) -> None:
        """Note that a request ended just now: the time to live begins anew."""
        self.used_at = self.clock.now()
        self.memory.movable.pop(self.id, None)
        if self.held[Part.ROWS]:
            self.memory.movable[self.id] = self
        self._hold(Part.PATHS, self.session.forest.joined_bytes)

    def publish(self) -> None:
        """Hand on the events that happened since the last time."""
        events = self.session.events
        start, self.published = self.published, len(events)
        self._hold(Part.EVENTS, len(events) * EVENT_BYTES)
        for event in events[start:]:
            self.event_stream.publish(self.id, event)

    def drop(self, reason: DropReason, sampled_tokens: int) -> None:
        """Account for sampled tokens that no turn holds."""
        self.session.drop(reason, sampled_tokens, at=self.clock.unix())

    def add_turn(self, turn: Turn) -> None:
        """Note a committed turn for retries and for the memory account."""
        self.by_digest.setdefault(turn.request.digest, []).append(turn.id)
        self.by_response[turn.completion.response_id] = turn.id
        self._grow(Part.TURNS, measure_turn(turn))
        self._grow(Part.ROWS, measure_rows(turn))
        fresh = islice(self.session.kept_tools, self._measured_tools, None)
        self._grow(Part.TOOLS, sum(map(measure_value, fresh)))
        self._measured_tools = len(self.session.kept_tools)

    def remember(self, pending: PendingTurn, body: KnownBody | None, notes: tuple[str, ...]) -> None:
        """Keep what is known of a request that has begun a turn, in place of what was known of the one before.

        Args:
            pending: what the session resolved the request to.
            body: what the next body is expected to begin with; None where that is not known.
            notes: what the dialect left out or changed.
        """
        self.known, self.known_new = None, len(pending.shown)
        if body is not None and pending.is_exact:
            self.known = KnownRequest(dialect=pending.request.dialect, body=body, query=pending.query, notes=notes)
        self._hold(Part.KNOWN, measure_known(self.known, self.known_new))

    def note_end(self, report: TurnEnded) -> None:
        """Keep what a recorded turn took; of other ends nothing is kept."""
        if report.turn_id is not None and not self.is_released:
            self.turn_costs[report.turn_id] = TurnCost(
                times=report.times, engine_url=report.engine_url, engine_calls=report.engine_calls
            )

    def find_reply(self, response_id: str) -> Message | None:
        """Find the assistant message that was delivered under an id; None where there is none. Any thread may ask."""
        turn_id = self.by_response.get(response_id)
        return None if turn_id is None else self.session.forest.get(turn_id).completion.message

    def note_written(self, turn_id: TurnId, *, was_written: bool) -> None:
        """Note that the reply of a turn was written to a client in full, or cut off."""
        self.touch()
        if was_written:
            self.lost.discard(turn_id)
            self.unknown.discard(turn_id)
            self.session.mark_delivered(turn_id, at=self.clock.unix())
            self.publish()
        elif not self.session.is_delivered(turn_id):
            self.lost.add(turn_id)

    # Receipts.

    def add_receipt(self, receipt: Receipt) -> None:
        """Hold a receipt in memory."""
        self.receipts.add(receipt)
        self._hold(Part.RECEIPTS, len(self.receipts) * RECEIPT_BYTES)

    def note_acknowledged(self, receipt: Receipt) -> None:
        """Note that a trainer has what a receipt stands for."""
        if self.acknowledged is None or receipt.turns > self.acknowledged.turns:
            self.acknowledged = receipt

    # Recording.

    @property
    def is_recording(self) -> bool:
        """True while a turn is being recorded."""
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
                self._run_behind(self._after_recording.pop(0))

    def _run_behind(self, action: Callable[[], None]) -> None:
        """Do what waited for the recording; whatever it raises, the turn is recorded, and the other actions run."""
        try:
            action()
        except Exception:
            logger.exception("session %s: what waited for a recording failed", self.id)

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

    @property
    def size_bytes(self) -> int:
        """The bytes that the whole session takes in memory."""
        return sum(self.held.values())

    @property
    def turn_bytes(self) -> int:
        """The bytes that the turns take in memory, without what is held to read them faster."""
        return sum(self.held[part] for part in (Part.TURNS, Part.TOOLS, Part.ROWS))

    def add_in_flight(self, turn: "TurnInFlight") -> None:
        """Note a turn in flight."""
        self.in_flight[turn.pending.number] = turn
        self.grow_in_flight(turn, measure_pending(turn.pending))

    def grow_in_flight(self, turn: "TurnInFlight", size_bytes: int) -> None:
        """Note that a turn in flight takes more."""
        if turn.pending.number in self.in_flight:
            turn.held_bytes += size_bytes
            self._grow(Part.IN_FLIGHT, size_bytes)

    def remove_in_flight(self, turn: "TurnInFlight") -> None:
        """Note that a turn is not in flight any more."""
        if self.in_flight.pop(turn.pending.number, None) is not None:
            self._grow(Part.IN_FLIGHT, -turn.held_bytes)
            self._count_prompt_text()

    def _count_prompt_text(self) -> None:
        """Count the JSON of the last prompt; where there is too much of it, drop that of sessions idle for longest."""
        if self.is_released:
            return
        memory, size_bytes = self.memory, self.prompt_text.size_bytes
        memory.written.pop(self.id, None)
        memory.written[self.id] = self
        memory.written_bytes += size_bytes - self.held[Part.PROMPT_TEXT]
        self._hold(Part.PROMPT_TEXT, size_bytes)
        while memory.written_bytes > PROMPT_TEXT_BYTES:
            next(iter(memory.written.values())).drop_prompt_text()

    def drop_prompt_text(self) -> None:
        """Let go of the JSON of the last prompt; the next call writes all of its own."""
        self.memory.written.pop(self.id, None)
        self.memory.written_bytes -= self.held[Part.PROMPT_TEXT]
        self.prompt_text = PromptText()
        self._hold(Part.PROMPT_TEXT, 0)

    def note_mismatches(self, leaf: TurnId, found: list[JsonObject] | None) -> None:
        """Keep what was found of the path that ends with a turn."""
        before = self.mismatches.get(leaf)
        self.mismatches[leaf] = found
        self._grow(Part.MISMATCHES, measure_value(found) - (measure_value(before) if before is not None else 0))

    def note_noncanonical(self, turns: Sequence[Turn], places: Mapping[TurnId, int]) -> None:
        """Keep what was found of turns that were looked at, which follow those looked at before."""
        self.noncanonical.update(places)
        self.split_turns = max(self.split_turns, turns[-1].id + 1)

    def note_spilled(self, turns: int, size_bytes: int) -> None:
        """Note that the rows of the first turns are on disk now."""
        self.spilled_turns = turns
        self._grow(Part.ROWS, -size_bytes)
        if not self.is_released:
            self.spilled_bytes += size_bytes
            self.memory.spilled_bytes += size_bytes

    def release(self) -> None:
        """Take the ended session out of the memory account, whatever is still being moved or recorded for it."""
        self.drop_prompt_text()
        self.memory.used_bytes -= self.size_bytes
        self.memory.spilled_bytes -= self.spilled_bytes
        self.held = dict.fromkeys(Part, 0)
        self.spilled_bytes = 0
        self.is_released = True
        self.memory.movable.pop(self.id, None)

    def count_uncollected(self) -> int:
        """Count the sampled tokens of the turns that no collect has seen."""
        turns = self.session.forest.turns[self.collected_turns :]
        return sum(len(turn.completion.ids) for turn in turns)

    def _grow(self, part: Part, by: int) -> None:
        self._hold(part, self.held[part] + by)

    def _hold(self, part: Part, size_bytes: int) -> None:
        if not self.is_released:
            self.memory.used_bytes += size_bytes - self.held[part]
            self.held[part] = size_bytes
