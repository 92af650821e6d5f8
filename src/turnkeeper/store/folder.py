"""The folder of a store: what it was made for, its slots, and the lock that each slot's process holds.

::

    DIR/store.json            what the store was made for
    DIR/slot-000/lock         held for the life of the process that has the slot
    DIR/slot-000/sessions.db  the records
    DIR/slot-000/rows/        one file a session
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from turnkeeper.errors import ConfigError, StoreLockedError, StoreMismatchError, StoreVersionError
from turnkeeper.store.schema import VERSION

MANIFEST = "store.json"
ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreManifest:
    """What a store was made for; it never changes."""

    version: int
    """The version of the schema by which its first record was written."""
    slots: int
    """How many processes share the store, each with a slot of its own."""
    fingerprint: Mapping[str, str]
    """What the stored ids mean: digests of the tokenizer and the chat template, the name of the family."""
    secret: str
    """64 random hex digits: the key of the hashes of session keys."""


def open_manifest(
    folder: Path, *, slots: int, fingerprint: Mapping[str, str], secret: str, writes: bool = True
) -> StoreManifest:
    """Read what a store was made for, and make the store where there is none.

    Args:
        folder: the store's.
        slots: how many slots it should have.
        fingerprint: what the ids of this server mean.
        secret: 64 random hex digits, taken where the store is made.
        writes: False to make nothing.

    Raises:
        StoreMismatchError: it was made for something else; the message names what.
        StoreVersionError: a newer version made it.
        ConfigError: it cannot be made or read.
    """
    made = StoreManifest(version=VERSION, slots=slots, fingerprint=dict(fingerprint), secret=secret)
    try:
        if writes:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(folder, made)
        found = read_manifest(folder)
    except OSError as error:
        raise ConfigError(f"--store {folder}: {error}", hint="name a folder that this user may write") from error
    _compare(folder, "slots", str(slots), str(found.slots))
    for name in sorted({*fingerprint, *found.fingerprint}):
        _compare(folder, name, fingerprint.get(name, ""), found.fingerprint.get(name, ""))
    return found


def read_manifest(folder: Path) -> StoreManifest:
    """Read what a store was made for.

    Raises:
        OSError: there is none, or it cannot be read.
        StoreVersionError: a newer version made it.
        ConfigError: the file is broken.
    """
    text = (folder / MANIFEST).read_text(encoding="utf-8")
    try:
        found = json.loads(text)
        if found["version"] > VERSION:
            raise StoreVersionError(
                f"{folder} was made by version {found['version']} of the store, and this one reads up to {VERSION}",
                hint="start the version of turnkeeper that made the store, or a later one",
                found=found["version"],
                known=VERSION,
            )
        return StoreManifest(**found)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / MANIFEST} is broken: {error}", hint="restore it, or name another folder"
        ) from error


def find_slot(folder: Path, slot: int) -> Path:
    """The folder of a slot."""
    return folder / f"slot-{slot:03}"


class SlotLock:
    """The lock of a slot, held until it is released or the process ends."""

    def __init__(self, folder: Path) -> None:
        """Make the slot's folder and take its lock.

        Raises:
            StoreLockedError: another process has it.
            ConfigError: the folder cannot be made or written.
        """
        path = folder / "lock"
        try:
            for each in (folder, folder / ROWS):
                each.mkdir(mode=0o700, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"--store {folder}: {error}", hint="name a folder that this user may write") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 20, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            raise StoreLockedError(
                f"{folder} belongs to another process{f', {holder}' if holder else ''}",
                hint="stop that server, or give this one another --store",
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the slot back."""
        os.close(self._file)


def _make(folder: Path, manifest: StoreManifest) -> None:
    """Write the manifest where there is none: of several processes that do so at once, one wins."""
    path = folder / MANIFEST
    if path.exists():
        return
    draft = folder / f"{MANIFEST}.{os.getpid()}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "w", encoding="utf-8") as text:
            json.dump(asdict(manifest), text, indent=1)
            text.flush()
            os.fsync(text.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _compare(folder: Path, name: str, asked: str, found: str) -> None:
    if asked != found:
        raise StoreMismatchError(
            f"{folder} was made for {name} {found or 'none'}, and this server has {asked or 'none'}",
            hint="stored ids mean nothing to another tokenizer, template or family: give this server another --store"
            if name != "slots"
            else "the number of workers of a store never changes: give this server another --store",
        )
