"""Deletes sessions of a store and gives room back, while no server has the store.

Both write, so that both take the locks of the slots first: a server would not know what another process removed.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import time

from sqlalchemy.exc import DBAPIError

from turnkeeper.errors import ConfigError, SessionNotFoundError, StoreLockedError
from turnkeeper.ids import SessionId
from turnkeeper.store import (
    Durability,
    RetentionRules,
    SessionStore,
    SlotReader,
    StoredLine,
    StoreManifest,
    StoreRules,
)
from turnkeeper.store.database import DATABASE, open_reader
from turnkeeper.store.folder import ROWS, find_slot, read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSession:
    """A session of a store, and the slot that has it."""

    slot: int
    line: StoredLine


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """What a vacuum did to a store."""

    before_bytes: int
    """What the store took on disk."""
    after_bytes: int
    removed: tuple[StoredLine, ...]
    """The sessions that were kept no longer, in the order in which they went."""


def find_sessions(folder: Path, session_ids: Iterable[str]) -> list[FoundSession]:
    """Find sessions in the slots of a store, in the order that they are named in. Takes no lock.

    Raises:
        SessionNotFoundError: the store has no records of one of them.
        ConfigError: the store cannot be read, or a newer version made it.
    """
    found: list[FoundSession] = []
    for text in dict.fromkeys(session_ids):
        places = ((slot, _find_line(folder, slot, SessionId(text))) for slot in _list_slots(folder, _read(folder)))
        place = next(((slot, line) for slot, line in places if line is not None and line.events), None)
        if place is None:
            raise SessionNotFoundError(
                f"{folder} has no records of session {text}", hint=f"turnkeeper sessions {folder}"
            )
        found.append(FoundSession(slot=place[0], line=place[1]))
    return found


async def delete_sessions(folder: Path, sessions: Iterable[FoundSession]) -> None:
    """Delete sessions for good, as ``DELETE`` does at a server: their ids stay, their records and rows go.

    Raises:
        StoreLockedError: a server has the slot of one of them; none is deleted.
        StoreWriteError: the store cannot be written.
        ConfigError: the database of a slot is broken.
    """
    chosen = list(sessions)
    slots = sorted({each.slot for each in chosen})
    hint = "DELETE /sessions/{id} at that server deletes a session, or stop it first"
    async with _holding(folder, slots, hint=hint) as stores:
        for slot, store in zip(slots, stores, strict=True):
            store.start()
            ids = [each.line.id for each in chosen if each.slot == slot]
            await asyncio.gather(*(store.delete(session_id, time()) for session_id in ids))


async def vacuum_store(folder: Path, *, keep_s: float = inf, max_bytes: int | None = None) -> VacuumReport:
    """Remove the sessions that are kept no longer, and give all room that nothing needs back to the file system.

    Args:
        folder: the store's.
        keep_s: how long a session is kept behind its last event, in seconds.
        max_bytes: the bytes to which the store is brought back; None for no limit.

    Raises:
        StoreLockedError: a server has a slot; nothing is done.
        StoreWriteError: the store cannot be written.
        ConfigError: the database of a slot is broken.
    """
    slots, before, after = _list_slots(folder, manifest := _read(folder)), 0, 0
    removed: list[StoredLine] = []
    rules = RetentionRules(
        keep_s=keep_s, max_bytes=None if max_bytes is None else max_bytes // manifest.slots, tombstone_s=inf
    )
    hint = "a server gives room back by itself, by --store-keep and --store-max-bytes; stop it first"
    async with _holding(folder, slots, hint=hint) as stores:
        for store in stores:
            before += store.used_bytes
            await asyncio.to_thread(store.vacuum)  # so that the rules go by what sessions take
            store.start()
            removed += await store.apply_retention(rules, time())
            await asyncio.to_thread(store.vacuum)
            after += store.used_bytes
    return VacuumReport(before_bytes=before, after_bytes=after, removed=tuple(removed))


@asynccontextmanager
async def _holding(folder: Path, slots: Sequence[int], *, hint: str) -> AsyncGenerator[list[SessionStore]]:
    """Hold slots of a store, all of them or none; what is written is on the medium when it is told."""
    manifest, stores = _read(folder), list[SessionStore]()
    try:
        for slot in slots:
            stores.append(_open(folder, slot, manifest, hint))
        yield stores
    finally:
        for store in stores:
            await store.close()


def _open(folder: Path, slot: int, manifest: StoreManifest, hint: str) -> SessionStore:
    try:
        return SessionStore.open(
            folder,
            fingerprint=manifest.fingerprint,
            secret=manifest.secret,
            slot=slot,
            slots=manifest.slots,
            rules=StoreRules(durability=Durability.SYNC),
            moves_aside=False,
        )
    except StoreLockedError as error:
        raise StoreLockedError(error.message, hint=hint) from error


def _find_line(folder: Path, slot: int, session_id: SessionId) -> StoredLine | None:
    home = find_slot(folder, slot)
    reader = SlotReader(open_reader(home), home / ROWS)
    try:
        return reader.find_session(session_id)
    except DBAPIError as error:
        raise ConfigError(f"the store {folder} cannot be read: {error.orig}", hint="read it as its owner") from error
    finally:
        reader.close()


def _list_slots(folder: Path, manifest: StoreManifest) -> list[int]:
    """List the slots that a server has begun."""
    return [slot for slot in range(manifest.slots) if (find_slot(folder, slot) / DATABASE).exists()]


def _read(folder: Path) -> StoreManifest:
    try:
        return read_manifest(folder)
    except OSError as error:
        raise ConfigError(f"the store {folder} cannot be read: {error}", hint="name the folder of a store") from error
