"""Row files: the payloads of one session's turns, one after the other, raw.

A turn's record says where its payloads stand. They are written where the last *stored* turn ends, so that what a failed
or unfinished write left there is overwritten, and is cut off where it is longer.
"""

import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from numpy.typing import NDArray

from turnkeeper.errors import StoreRecordError
from turnkeeper.ids import SessionId, parse_session_id
from turnkeeper.store.faults import CrashPoint, Reach, go_on
from turnkeeper.store.payload import Payload, PayloadPlace, compute_checksum, new_checksum

_SUFFIX = ".rows"

_LOST = (None, errno.ENOENT, errno.EIO)
"""The errors by which items are lost, None for a file that ends early. Others pass: too many open files, for one."""

_CHECKED_BYTES = 1 << 20
"""How many bytes are held at a time to be compared with a checksum."""


class RowFile:
    """The row file of one session, to read from: opened when first read, closed when nothing reads it any more."""

    def __init__(self, path: Path) -> None:
        """Name the file; a file that is removed once it was opened stays readable."""
        self._path = path
        self._fd: int | None = None
        self._opening = Lock()

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from a place in the file. Any thread may call it, several at once.

        Raises:
            OSError: the file is not there, or ends before.
        """
        with self._opening:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._fd)
        while buffer:
            size = os.preadv(self._fd, [buffer], offset)
            if not size:
                raise OSError(f"{self._path.name} ends {len(buffer)} bytes before the rows that it should hold")
            buffer, offset = buffer[size:], offset + size


class StoredItems:
    """A run of one turn's items in its file; called with an item's number, it reads the items from there on.

    Items that another process stored are compared with their checksum before the first of them is read: only the end of
    the machine, or its disk, can have changed them.
    """

    def __init__(self, file: RowFile, place: PayloadPlace, *, is_checked: bool) -> None:
        """Name the place.

        Args:
            file: the session's.
            place: where the items stand.
            is_checked: whether they are known to be those that were stored, as where this process stored them.
        """
        self._file = file
        self._place = place
        self._is_checked = is_checked
        self._item_bytes = place.size_bytes // max(1, place.shape[0])

    def __call__(self, start: int, out: NDArray[Any], /) -> None:
        """Fill an array with the items from ``start`` on."""
        if not self._is_checked:
            self._check()
        if out.size:
            self._file.read_into(out.data.cast("B"), self._place.offset + start * self._item_bytes)

    def _check(self) -> None:
        place, checksum = self._place, new_checksum()
        buffer = memoryview(bytearray(min(_CHECKED_BYTES, place.size_bytes)))
        try:
            for offset in range(place.offset, place.stop, _CHECKED_BYTES):
                piece = buffer[: place.stop - offset]
                self._file.read_into(piece, offset)
                checksum.update(piece)
        except OSError as error:
            if error.errno not in _LOST:
                raise
            raise _build_lost(place, error.strerror or str(error)) from error
        if checksum.intdigest() != place.checksum:
            raise _build_lost(place, "their checksum is wrong")
        self._is_checked = True


def _build_lost(place: PayloadPlace, reason: str) -> StoreRecordError:
    return StoreRecordError(
        f"{place.channel} at {place.offset} are not what was stored: {reason}",
        hint="the machine ended before they were on the medium, or its disk is bad; --row-durability sync helps",
    )


class RowFiles:
    """The row files of a slot, in one folder."""

    def __init__(self, folder: Path, reach: Reach = go_on) -> None:
        self.folder = folder
        self._reach = reach
        self.used_bytes = 0
        """What the files of all sessions take, from ``measure`` on."""
        self._unsynced: set[Path] = set()
        self._is_new = False

    def measure(self) -> None:
        """Measure what the files of all sessions take."""
        self.used_bytes = sum(entry.stat().st_size for entry in os.scandir(self.folder))

    def write(self, session_id: SessionId, payloads: Sequence[Payload], places: Sequence[PayloadPlace]) -> None:
        """Write payloads at their places, and cut off what stands behind the last one.

        Raises:
            OSError: the disk is full or fails; what was written is overwritten by the next write.
        """
        self._reach(CrashPoint.BEFORE_ROWS)
        path = self._find(session_id)
        self._is_new |= not path.exists()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        before = os.fstat(file).st_size
        try:
            for payload, place in zip(payloads, places, strict=True):
                data, half = payload.data, len(payload.data) // 2
                _write_all(file, data[:half], place.offset)
                self._reach(CrashPoint.ROWS_HALF_WRITTEN)
                _write_all(file, data[half:], place.offset + half)
                self._reach(CrashPoint.BETWEEN_PAYLOADS)
            if before > places[-1].stop:
                os.ftruncate(file, places[-1].stop)
        finally:
            self.used_bytes += os.fstat(file).st_size - before
            os.close(file)
        self._unsynced.add(path)

    def sync(self) -> None:
        """Bring to the medium what was written since the last time.

        Raises:
            OSError: the medium fails.
        """
        while self._unsynced:
            _sync(self._unsynced.pop(), os.O_WRONLY)
        if self._is_new:
            _sync(self.folder, os.O_RDONLY)
            self._is_new = False

    def forget(self) -> None:
        """Leave what was written to the kernel."""
        self._unsynced.clear()
        self._is_new = False

    def read(self, session_id: SessionId, place: PayloadPlace) -> NDArray[Any]:
        """Read a payload into memory and check it.

        Raises:
            StoreRecordError: it is not there in full, or its checksum is wrong.
        """
        try:
            with self._find(session_id).open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), place.size_bytes, place.offset)
        except FileNotFoundError:
            data = b""
        if len(data) < place.size_bytes or compute_checksum(data) != place.checksum:
            raise StoreRecordError(
                f"session {session_id}: {place.channel} at {place.offset} is not what was stored: "
                f"{len(data)} of {place.size_bytes} bytes are there",
                hint="the machine ended before they were on the medium; --durability sync writes them at once",
            )
        return place.read(data)

    def open(self, session_id: SessionId) -> RowFile:
        """The row file of a session, which is opened when it is first read."""
        return RowFile(self._find(session_id))

    def measure_session(self, session_id: SessionId) -> int:
        """How long a session's row file is; 0 where there is none."""
        try:
            return self._find(session_id).stat().st_size
        except FileNotFoundError:
            return 0

    def map(self, session_id: SessionId) -> memoryview:
        """Map a session's row file: nothing is read before it is looked at. Empty where there is no such file."""
        try:
            with self._find(session_id).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
        except FileNotFoundError:
            return memoryview(b"")

    def remove(self, session_id: SessionId) -> None:
        """Remove a session's row file, if there is one. What maps it keeps it."""
        self._reach(CrashPoint.BEFORE_UNLINK)
        path = self._find(session_id)
        if path.exists():
            self.used_bytes -= path.stat().st_size
            path.unlink()
        self._unsynced.discard(path)
        self._reach(CrashPoint.AFTER_UNLINK)

    def list_sessions(self) -> list[SessionId]:
        """List the sessions that have a row file."""
        names = (entry.name.removesuffix(_SUFFIX) for entry in os.scandir(self.folder) if entry.name.endswith(_SUFFIX))
        return [session_id for name in names if (session_id := parse_session_id(name)) is not None]

    def _find(self, session_id: SessionId) -> Path:
        return self.folder / f"{session_id}{_SUFFIX}"


def _write_all(file: int, data: memoryview, offset: int) -> None:
    """The system may write a part, as it does where the disk gets full."""
    while len(data):
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _sync(path: Path, flags: int) -> None:
    try:
        file = os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # its session was deleted meanwhile
    try:
        os.fdatasync(file)
    finally:
        os.close(file)
