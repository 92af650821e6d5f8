"""Rows of the list of sessions for those that a store has and the memory has not: from its index, none is loaded."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from turnkeeper.errors import TurnkeeperError
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject, encode_json, is_object
from turnkeeper.service.sessions.listing import (
    MAX_ROW_METADATA_BYTES,
    KeptRow,
    ListOrder,
    SessionQuery,
    SessionStatus,
    has_metadata,
)
from turnkeeper.store import ListedSession, SlotReader, StoredOrder, StoredState

_ORDERS: Mapping[ListOrder, StoredOrder] = {
    ListOrder.ID: StoredOrder.ID,
    ListOrder.IN_FLIGHT: StoredOrder.ID,
    ListOrder.CREATED: StoredOrder.CREATED,
    ListOrder.IDLE: StoredOrder.IDLE,
    ListOrder.BYTES: StoredOrder.ID,
}
"""The order of the store that each order of the list is: nothing is in flight, and nothing takes memory."""

_STATES: Mapping[SessionStatus | None, Collection[StoredState]] = {
    None: (StoredState.OPEN, StoredState.CLOSED),
    SessionStatus.OPEN: (StoredState.OPEN,),
    SessionStatus.CLOSED: (StoredState.CLOSED,),
    SessionStatus.EXPIRED: (StoredState.EXPIRED,),
}

_PAGE = 500
"""How many sessions are read at a time."""

_SLACK_S = 0.001
"""How much earlier than the place of a cursor is looked, since a time that was converted twice is no longer exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSearch:
    """A search for rows."""

    query: SessionQuery
    behind: tuple[float, str] | None
    """The place in the order of the list behind which rows begin."""
    in_memory: Collection[str]
    """The sessions that are not looked for."""
    find_state: Callable[[SessionId], StoredState | None]
    """Finds the state of a session, its end included where that is on its way to the index."""
    now: float
    """Unix seconds."""
    since_epoch_s: float
    """What has to be taken from Unix seconds to get the time of the server's clock, by which sessions are idle."""

    def find(self, reader: SlotReader) -> list[KeptRow]:
        """Find the rows of a page and one more, in the order of the list. Blocks; call it in a thread."""
        query = self.query
        if query.in_flight or query.phase is not None or query.min_age_s is not None:
            return []
        found: list[KeptRow] = []
        for listed in self._iter_listed(reader):
            row = self._build_row(listed)
            if row is not None:
                found.append(row)
                if len(found) > query.limit:
                    break
        return found

    def _iter_listed(self, reader: SlotReader) -> Iterator[ListedSession]:
        order, behind = _ORDERS[self.query.order], self._find_start()
        while page := reader.list_page(
            order, states=_STATES[self.query.state], behind=behind, limit=_PAGE, now=self.now
        ):
            yield from page
            behind = page[-1].place

    def _find_start(self) -> tuple[float, str] | None:
        """The place in the order of the store behind which is looked."""
        if self.behind is None:
            return None
        key, session_id = self.behind
        match self.query.order:
            case ListOrder.IDLE:
                return key + self.since_epoch_s - _SLACK_S, ""
            case ListOrder.CREATED:
                return key, session_id
            case _:  # those in memory may come first
                return (0.0, session_id) if key == self._find_key(0.0) else None

    def _find_key(self, stored: float) -> float:
        """What a session is sorted by in the order of the list."""
        match self.query.order:
            case ListOrder.IN_FLIGHT:
                return float("inf")
            case ListOrder.IDLE:
                return stored - self.since_epoch_s
            case _:
                return stored

    def _build_row(self, listed: ListedSession) -> KeptRow | None:
        """Build a row; None for a session that is not to be listed."""
        line, query = listed.line, self.query
        key, idle_s = self._find_key(listed.key), max(0.0, self.now - line.changed_at)
        is_passed = self.behind is not None and (key, line.id) <= self.behind
        if is_passed or line.id in self.in_memory or (query.min_idle_s is not None and idle_s < query.min_idle_s):
            return None
        state = self.find_state(line.id)
        if state is None or state is StoredState.DELETED or (listed.state.is_served and not state.is_served):
            return None
        row: JsonObject = {
            "session_id": line.id,
            "state": str(SessionStatus(listed.state)),
            "closed": None,
            "history": None,
            "created_at": line.opened_at,
            "last_request_at": line.changed_at,
            "age_s": round(max(0.0, self.now - line.opened_at), 3),
            "idle_s": round(idle_s, 3),
            "turns": line.turns,
            "bytes": 0,
            "in_flight": 0,
            "in_flight_turns": [],
            "metadata": None,
        }
        try:
            opening = listed.read_opening()
        except TurnkeeperError as error:
            return None if query.metadata else KeptRow(key=key, id=line.id, row={**row, "error": error.message})
        found = opening.settings.get("metadata", {})
        metadata: JsonObject = found if is_object(found) else {}
        if not has_metadata(metadata, query.metadata):
            return None
        row["history"] = str(opening.event.policy.kind)
        row["metadata"] = metadata if len(encode_json(metadata)) <= MAX_ROW_METADATA_BYTES else None
        return KeptRow(key=key, id=SessionId(line.id), row=row)
