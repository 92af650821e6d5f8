"""The list of sessions, page by page: which of them, in which order, and what a row says.

It has the sessions in memory, and those that a store keeps and nobody has asked for yet.

A page ends with a cursor that names the place of its last session in the order, so that the next page goes on behind
it, whichever sessions came or went. A session whose place has changed meanwhile (a turn ended, it was used) may be met
again or not at all; one that stands still is met once. Looking for a page takes time linear in the sessions; a row is
made for those of the page alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from turnkeeper.errors import RequestError
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject, spell_value
from turnkeeper.service.sessions.activity import FindEngine, describe_phase, list_in_flight
from turnkeeper.service.sessions.entry import SessionEntry
from turnkeeper.service.sessions.footprint import SESSION_BYTES, Part
from turnkeeper.telemetry import TurnPhase

if TYPE_CHECKING:
    from turnkeeper.service.turns import TurnInFlight

MAX_PAGE = 1000
"""How many sessions one page of the list has at most."""

MAX_ROW_TURNS = 16
"""How many turns in flight a row describes, the oldest of them; it counts all."""

MAX_ROW_METADATA_BYTES = 8192
"""About how large the metadata of a session may be to stand in its row; ``GET /sessions/{id}`` shows all of it."""


LOOKED_AT_ONCE, DESCRIBED_AT_ONCE = 500, 100
"""How many sessions are looked at, and how many rows are made, before other tasks run: a millisecond or two of each."""


class SessionStatus(StrEnum):
    """Whether a session takes turns."""

    OPEN = "open"
    """The session takes turns."""
    CLOSED = "closed"
    """The session takes no further turns, and can still be read and collected."""
    EXPIRED = "expired"
    """The session was idle for longer than its time to live. A store still has its records; no request is answered."""


class ListOrder(StrEnum):
    """The order of the list."""

    ID = "id"
    """By id, which says nothing."""
    IN_FLIGHT = "in_flight"
    """The one first whose oldest turn in flight has been so longest; those without a turn in flight come last."""
    CREATED = "created"
    """The oldest first."""
    IDLE = "idle"
    """The one first that has been without a request longest; those in use come last."""
    BYTES = "bytes"
    """The one first that takes most memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """Which sessions are listed, and how; None leaves a condition out."""

    after: str | None = None
    """The cursor at which the page before ended; None for the first page."""
    limit: int = MAX_PAGE
    """The most sessions of the page."""
    order: ListOrder = ListOrder.ID
    state: SessionStatus | None = None
    in_flight: bool | None = None
    """Whether they have a turn in flight."""
    phase: TurnPhase | None = None
    """The phase that one of their turns in flight is in."""
    min_age_s: float | None = None
    """How long one of their turns has been in flight at least; with a phase, how long it has been in that phase."""
    min_idle_s: float | None = None
    """How long they have been without a request at least."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Values of the metadata that they were created with: texts as they are, other values as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRow:
    """A session that a store keeps and that is not in memory."""

    key: float
    """What it is sorted by, before its id."""
    id: SessionId
    row: JsonObject


FindKept: TypeAlias = Callable[[SessionQuery, tuple[float, str] | None, Collection[str]], Awaitable[Sequence[KeptRow]]]
"""Finds the rows of sessions that a store keeps: which of them, the place behind which the page begins, and the ids of
those in memory, which are left out. Of the rows that fit it returns the first ones, one more than the page may have."""


async def list_page(
    entries: Iterable[SessionEntry], query: SessionQuery, *, find_engine: FindEngine, find_kept: FindKept
) -> JsonObject:
    """List one page. Other tasks run while the page is looked for and while its rows are made.

    Args:
        entries: all sessions in memory, in any order.
        query: which of them, and how.
        find_engine: finds the engine that has a call.
        find_kept: finds the sessions that a store keeps.

    Returns:
        ``sessions``, and as ``next`` the cursor of the next page, None on the last one.

    Raises:
        RequestError: the cursor is none of this order.
    """
    behind = None if query.after is None else _parse_cursor(query.after, query.order)
    found, in_memory = list[_Placed](), tuple(entries)
    for part in _split(in_memory, LOOKED_AT_ONCE):
        found += _find_wanted(part, query, behind)
        await asyncio.sleep(0)
    kept = await find_kept(query, behind, {entry.id for entry in in_memory})
    found += [(each.key, each.id, each.row) for each in kept]
    found.sort()
    page = found[: query.limit]
    rows: list[JsonObject] = []
    for part in _split(page, DESCRIBED_AT_ONCE):
        rows += [_describe(each[2], find_engine) for each in part if not _is_gone(each[2])]
        await asyncio.sleep(0)
    has_more = len(found) > query.limit
    return {"sessions": rows, "next": _build_cursor(*page[-1][:2], query.order) if has_more else None}


_Placed: TypeAlias = tuple[float, str, SessionEntry | JsonObject]
"""What a session is sorted by, its id, and the session itself, or its row; no comparison reaches that: ids are
unique."""


def _is_gone(found: SessionEntry | JsonObject) -> bool:
    return isinstance(found, SessionEntry) and found.is_released


def _describe(found: SessionEntry | JsonObject, find_engine: FindEngine) -> JsonObject:
    return describe_row(found, find_engine) if isinstance(found, SessionEntry) else found


Item = TypeVar("Item")


def _split(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _find_wanted(
    entries: Iterable[SessionEntry], query: SessionQuery, behind: tuple[float, str] | None
) -> Iterator[_Placed]:
    find_key, conditions = _KEYS[query.order], _list_conditions(query)
    for entry in entries:
        if entry.is_released or any(not is_met(entry) for is_met in conditions):
            continue
        key = find_key(entry)
        if behind is None or (key, entry.id) > behind:
            yield key, entry.id, entry


def describe_row(entry: SessionEntry, find_engine: FindEngine) -> JsonObject:
    """Describe a session in the list."""
    now, unix = entry.clock.now(), entry.clock.unix()
    since_used_s = now - entry.used_at
    closed_as = entry.session.closed_as
    turns = list_in_flight(entry)[:MAX_ROW_TURNS] if entry.in_flight else ()
    return {
        "session_id": entry.id,
        "state": _find_state(entry),
        "closed": closed_as,
        "history": entry.session.policy.kind,
        "created_at": entry.created_at,
        "last_request_at": round(unix - since_used_s, 3),
        "age_s": round(max(0.0, unix - entry.created_at), 3),
        "idle_s": round(since_used_s, 3) if entry.is_idle else 0.0,
        "turns": len(entry.session.forest),
        "bytes": entry.size_bytes,
        "in_flight": len(entry.in_flight),
        "in_flight_turns": [describe_phase(turn, find_engine) for turn in turns],
        "metadata": entry.settings.metadata if _is_small(entry) else None,
    }


def _is_small(entry: SessionEntry) -> bool:
    """Tell whether a session's metadata may stand in its row; what it was opened with was measured when it was."""
    return entry.held[Part.SETTINGS] - SESSION_BYTES <= MAX_ROW_METADATA_BYTES


def _find_state(entry: SessionEntry) -> SessionStatus:
    return SessionStatus.OPEN if entry.session.closed_as is None else SessionStatus.CLOSED


Condition: TypeAlias = Callable[[SessionEntry], bool]


def _list_conditions(query: SessionQuery) -> list[Condition]:
    """List the conditions that a query sets, the cheapest first; an expired session meets none."""
    conditions: list[Condition] = [lambda entry: not entry.is_expired(entry.clock.now())]
    state, in_flight, min_idle_s = query.state, query.in_flight, query.min_idle_s
    if state is not None:
        conditions.append(lambda entry: _find_state(entry) is state)
    if in_flight is not None:
        conditions.append(lambda entry: bool(entry.in_flight) is in_flight)
    if query.phase is not None or query.min_age_s is not None:
        conditions.append(lambda entry: any(_is_wanted_turn(turn, query) for turn in entry.in_flight.values()))
    if min_idle_s is not None:
        conditions.append(lambda entry: (entry.clock.now() - entry.used_at if entry.is_idle else 0.0) >= min_idle_s)
    if query.metadata:
        conditions.append(lambda entry: has_metadata(entry.settings.metadata, query.metadata))
    return conditions


def has_metadata(metadata: JsonObject, wanted: Mapping[str, str]) -> bool:
    """Tell whether metadata has these values: texts as they are, other values as JSON."""
    return all(name in metadata and spell_value(metadata[name]) == value for name, value in wanted.items())


def _is_wanted_turn(turn: "TurnInFlight", query: SessionQuery) -> bool:
    phases = turn.phases
    if query.phase is not None and phases.phase is not query.phase:
        return False
    age_s = phases.age_s if query.phase is None else phases.phase_age_s
    return query.min_age_s is None or age_s >= query.min_age_s


def _find_began(entry: SessionEntry) -> float:
    return min((turn.phases.began for turn in entry.in_flight.values()), default=inf)


_KEYS: Mapping[ListOrder, Callable[[SessionEntry], float]] = {
    ListOrder.ID: lambda _: 0.0,
    ListOrder.IN_FLIGHT: _find_began,
    ListOrder.CREATED: lambda entry: entry.created_at,
    ListOrder.IDLE: lambda entry: entry.used_at if entry.is_idle else inf,
    ListOrder.BYTES: lambda entry: float(-entry.size_bytes),
}
"""What each order sorts by, before the id."""


def _build_cursor(key: float, session_id: str, order: ListOrder) -> str:
    return session_id if order is ListOrder.ID else f"{order}:{key!r}:{session_id}"


def _parse_cursor(text: str, order: ListOrder) -> tuple[float, str]:
    """Parse a cursor; by id it is an id, or any text that stands where an id would."""
    if order is ListOrder.ID:
        return 0.0, text
    name, _, rest = text.partition(":")
    key, _, session_id = rest.partition(":")
    try:
        if name == order:
            return float(key), session_id
    except ValueError:
        pass
    raise RequestError(
        f"after is no place in the order {order}, got {text[:64]!r}",
        hint="take it from next of the page before, with the same order",
        param="after",
    )
