"""The end of a session's records: where the next one goes. Only the writer's thread uses it.

A write moves a draft of the end, which takes effect once its group is stored and is thrown away where it is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnkeeper.core.event import TurnCommitted
from turnkeeper.errors import SessionClosedError, StoreWriteError
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.store.codec import EncodedEvent, SessionEncoder, StoredEvent
from turnkeeper.store.payload import PayloadPlace, place_payloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Where a session's next record goes, and what its records come to."""

    changed_at: float
    """Unix seconds, of the event stored last."""
    events: int = 0
    turns: int = 0
    sampled_tokens: int = 0
    record_bytes: int = 0
    row_bytes: int = 0
    """Where the rows of the last stored turn end."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedEvent:
    """An event with the place that its record and its payloads take."""

    place: int
    encoded: EncodedEvent
    payload_places: tuple[PayloadPlace, ...]


class SessionTail:
    """The end of one session's records, and its draft."""

    def __init__(self, session_id: SessionId, number: int, tail: Tail, shared: Sequence[JsonObject] = ()) -> None:
        self.id = session_id
        self.number = number
        """The session's number in the database."""
        self.stored = tail
        self.draft = tail
        self.is_ended = False
        """True once nothing may be written any more: the session was deleted."""
        self.unwritten: list[StoredEvent] = []
        """Events nobody waits for whose write failed: they go with the session's next one."""
        self._encoder = SessionEncoder(shared)
        self._stored_shared = self._encoder.mark()

    def place(self, event: StoredEvent) -> PlacedEvent:
        """Give the next event its place in the draft.

        Raises:
            SessionClosedError: the session was deleted.
            StoreWriteError: the turn before this one was not stored.
            TypeError: the event holds what cannot be stored.
        """
        draft, turn = self.draft, event.turn if isinstance(event, TurnCommitted) else None
        if self.is_ended:
            raise SessionClosedError(f"session {self.id} was deleted, and nothing is stored for it")
        if turn is not None and turn.id != draft.turns:
            raise StoreWriteError(
                f"session {self.id}: turn {turn.id} cannot be stored, since the store has {draft.turns} turns of it"
            )
        encoded = self._encoder.encode(event)
        places = place_payloads(encoded.payloads, draft.row_bytes)
        self.draft = Tail(
            changed_at=event.at,
            events=draft.events + 1,
            turns=draft.turns + (turn is not None),
            sampled_tokens=draft.sampled_tokens + (0 if turn is None else len(turn.completion.ids)),
            record_bytes=draft.record_bytes + len(encoded.record),
            row_bytes=places[-1].stop if places else draft.row_bytes,
        )
        return PlacedEvent(place=draft.events, encoded=encoded, payload_places=places)

    def mark(self) -> tuple[Tail, int]:
        """A point to which ``undo`` can return."""
        return self.draft, self._encoder.mark()

    def undo(self, mark: tuple[Tail, int]) -> None:
        """Take back what was placed since the mark."""
        self.draft = mark[0]
        self._encoder.undo(mark[1])

    def keep(self) -> None:
        """The draft is stored."""
        self.stored, self._stored_shared = self.draft, self._encoder.mark()

    def drop(self) -> None:
        """The draft is not stored."""
        self.undo((self.stored, self._stored_shared))

    def end(self) -> None:
        """Write nothing any more, and forget what it holds."""
        self.is_ended = True
        self.unwritten = []
        self.stored = self.draft = replace(self.stored, row_bytes=0, record_bytes=0)
