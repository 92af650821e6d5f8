"""Sessions in a store, read beside its servers or without any: short transactions that write nothing."""

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from heapq import merge
from pathlib import Path
from time import time

import orjson
from sqlalchemy.exc import DBAPIError

from turnkeeper.choices import StoredState
from turnkeeper.core import Session, fold
from turnkeeper.errors import AssemblyError, ConfigError, RequestError, SessionNotFoundError, TurnkeeperError
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject, encode_json, is_object, spell_value
from turnkeeper.matching import TOLERANT
from turnkeeper.samples import CollectOptions, forecast, show_outcome, view_session
from turnkeeper.service.sessions.record import add_contents, build_metadata
from turnkeeper.store import ListedSession, LoadedSession, SlotReader, StoredOrder, StoredReceipt
from turnkeeper.store.database import DATABASE, open_reader
from turnkeeper.store.folder import ROWS, find_slot, read_manifest
from turnkeeper.views.payload import METADATA_PREFIX
from turnkeeper.views.server import read_answer
from turnkeeper.views.session import ShownSession


class StoreSource:
    """The sessions of all slots of a store."""

    has_turns_in_flight = False
    elsewhere = None

    def __init__(self, folder: Path) -> None:
        """Open the slots that have a database; nothing is read of them yet.

        Raises:
            ConfigError: the store cannot be read, or a newer version made it.
        """
        self._folder = folder
        with self._reading():
            self.manifest = read_manifest(folder)
        slots = (find_slot(folder, slot) for slot in range(self.manifest.slots))
        self._slots = [
            SlotReader(open_reader(slot), slot / ROWS) for slot in slots if (slot / DATABASE).exists()
        ]  # one that no server has begun yet has none

    def iter_rows(self, filters: Mapping[str, str]) -> Iterator[JsonObject]:
        """Iterate over the sessions whose records are there, the oldest first unless ``order`` says otherwise.

        ``state`` is that of the store: open, closed, expired or deleted. A row lacks what only a server knows, and says
        how many turns were collected and acknowledged; that of a session whose opening cannot be read has an ``error``.
        """
        order, states, wanted = self._read_filters(filters)
        now = time()
        with self._reading():
            pages = (slot.iter_pages(order, states=states) for slot in self._slots)
            for listed in merge(*pages, key=lambda each: each.place):
                row = _describe(listed, now)
                metadata = row.get("metadata", {})
                if all(name in metadata and spell_value(metadata[name]) == value for name, value in wanted.items()):
                    yield row

    def list_ids(self) -> list[str]:
        """List the ids of the sessions whose records are there, the oldest first."""
        with self._reading():
            found = [line for slot in self._slots for line in slot.list_sessions() if line.events]
        return [line.id for line in sorted(found, key=lambda line: (line.opened_at, line.id))]

    def _read_filters(
        self, filters: Mapping[str, str]
    ) -> tuple[StoredOrder, Collection[StoredState], Mapping[str, str]]:
        """Read the order, the states and the metadata that are asked for."""
        chosen = {name: value for name, value in filters.items() if not name.startswith(METADATA_PREFIX)}
        order, state = chosen.pop("order", "created"), chosen.pop("state", None)
        for name in chosen:
            raise RequestError(
                f"{name} is told by servers, and {self._folder} is a store",
                hint=f"sessions of a store are chosen by state and {METADATA_PREFIX}KEY",
                param=name,
            )
        _check_choice("order", order, StoredOrder)
        if state is not None:
            _check_choice("state", state, StoredState)
        wanted = {
            name.removeprefix(METADATA_PREFIX): value
            for name, value in filters.items()
            if name.startswith(METADATA_PREFIX)
        }
        return StoredOrder(order), tuple(StoredState) if state is None else (StoredState(state),), wanted

    def read_session(self, session_id: str) -> ShownSession:
        """Read one session with the content of every branch.

        What becomes of its tokens is what a collect by the built-in rules would make of them: options of a server are
        not stored.
        """
        return show_loaded(self.load(session_id))

    def load(self, session_id: str) -> LoadedSession:
        """Load one session from the slot that has it, its rows left where they are.

        Raises:
            SessionNotFoundError: no slot has records of it.
            StoreRecordError: its opening cannot be read.
            ConfigError: the store cannot be read, or a newer version wrote the session.
        """
        with self._reading():
            return self._find_slot(SessionId(session_id)).load_session(SessionId(session_id))

    def list_receipts(self, session_id: str) -> list[StoredReceipt]:
        """List the collects of a session, in order.

        Raises:
            SessionNotFoundError: no slot has records of it.
            ConfigError: the store cannot be read.
        """
        with self._reading():
            return self._find_slot(SessionId(session_id)).list_receipts(SessionId(session_id))

    def _find_slot(self, session_id: SessionId) -> SlotReader:
        for slot in self._slots:
            line = slot.find_session(session_id)
            if line is not None and line.events:
                return slot
        raise SessionNotFoundError(
            f"{self._folder} has no records of session {session_id}", hint=f"turnkeeper sessions {self._folder}"
        )

    @contextmanager
    def _reading(self) -> Generator[None]:
        """Turn what the system and SQLite say into the error of the store."""
        try:
            yield
        except (OSError, DBAPIError) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise ConfigError(
                f"the store {self._folder} cannot be read: {cause}",
                hint="read it as its owner; where its folder cannot be written, after its server has ended in order",
            ) from error


def show_loaded(loaded: LoadedSession) -> ShownSession:
    """Show a session that was loaded; see ``StoreSource.read_session``."""
    session = fold(loaded.events, matcher=TOLERANT)  # one that is only read never asks its matcher
    shown = read_answer(orjson.loads(encode_json(_describe_session(loaded.line.id, loaded, session))))
    return replace(shown, notes=list_notes(loaded))


def _describe(listed: ListedSession, now: float) -> JsonObject:
    line = listed.line
    row: JsonObject = {
        "session_id": line.id,
        "state": str(line.state),
        "created_at": line.opened_at,
        "age_s": round(max(0.0, now - line.opened_at), 3),
        "idle_s": round(max(0.0, now - line.changed_at), 3),
        "turns": line.turns,
        "bytes": line.record_bytes + line.row_bytes,
        "collected_turns": line.collected_turns,
        "acknowledged_turns": line.acknowledged_turns,
    }
    try:
        opening = listed.read_opening()
    except TurnkeeperError as error:
        return {**row, "error": error.message}
    metadata = opening.settings.get("metadata")
    return {**row, "history": str(opening.event.policy.kind), "metadata": metadata if is_object(metadata) else {}}


def _check_choice(name: str, value: str, known: type[StoredOrder | StoredState]) -> None:
    names = [str(each) for each in known]
    if value not in names:
        raise RequestError(f"{name} is no {value[:64]} of a store", hint=f"known: {', '.join(names)}", param=name)


def _describe_session(session_id: str, loaded: LoadedSession, session: Session) -> JsonObject:
    """Describe a session as ``GET /sessions/{id}?branches=1`` does, without what its server alone knows."""
    settings, state = loaded.opening.settings, loaded.line.state
    turns = session.forest.turns
    view = view_session(
        session,
        unknown=frozenset(turn.id for turn in turns if not session.is_delivered(turn.id)),
        is_evaluation=bool(settings.get("evaluation")),
    )
    own: JsonObject = {"metadata": settings.get("metadata", {})}
    if session.closed_as is None and not state.is_served:
        own["closed"] = str(state)
    metadata = build_metadata(session, view, max_trim_tokens=0, own=own, mismatch=None)  # the trim is not shown
    with suppress(AssemblyError):  # a collect says why; what the session knows by itself is still true
        outcome = forecast(
            view,
            session_ledger=session.ledger,
            options=CollectOptions.defaults(),
            max_seq_len=loaded.opening.limit_tokens,
        )
        metadata = show_outcome(metadata, outcome.ledger, outcome.dropped_leaves, outcome.turn_ledgers)
    return {"session_id": session_id, "metadata": add_contents(metadata, turns)}


def list_notes(loaded: LoadedSession) -> tuple[str, ...]:
    """List what could not be read of a session."""
    torn = (f"{loaded.skipped} records are left out: {loaded.torn}",) if loaded.torn else ()
    return (*torn, *(f"rows are lost: {lost}" for lost in loaded.lost_payloads))
