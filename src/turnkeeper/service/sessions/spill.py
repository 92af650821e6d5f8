"""Moves the routing rows of idle sessions to disk, where memory runs short.

Rows are by far the largest part of a session and are only read when samples are collected. They go to one file a
session, which has no name: it ends with the session, also when the process is killed.
"""

import asyncio
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnkeeper.routing import ReadRows, RoutingRows
from turnkeeper.service.sessions.entry import SessionEntry


class NamelessFile:
    """A file without a name, which ends with this object."""

    def __init__(self, directory: str | None) -> None:
        """Make the file.

        Args:
            directory: where it takes its room; None for the system's folder of temporary files.

        Raises:
            OSError: the folder is not there, or takes no file.
        """
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd)

    def append(self, data: memoryview) -> None:
        """Write bytes behind those that are there.

        Raises:
            OSError: the disk is full.
        """
        while data:
            data = data[os.write(self.fd, data) :]

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from a place in the file.

        Raises:
            OSError: the file cannot be read, or ends before.
        """
        while buffer:
            size = os.preadv(self.fd, [buffer], offset)
            if not size:
                raise OSError(f"the file ends {len(buffer)} bytes before the rows that it should hold")
            buffer, offset = buffer[size:], offset + size


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledRows:
    """One run of rows in its file; called with a row's number, it reads the rows from there on."""

    file: NamelessFile
    offset: int
    """Where the first row begins, in bytes."""
    row_bytes: int

    def __call__(self, start: int, out_RLK: NDArray[np.unsignedinteger], /) -> None:
        """Fill an array with the rows from ``start`` on."""
        self.file.read_into(out_RLK.data.cast("B"), self.offset + start * self.row_bytes)


def list_rows(entry: SessionEntry) -> list[RoutingRows]:
    """List the routing rows of a session that are still in memory."""
    turns = entry.session.forest.turns[entry.spilled_turns :]
    return [turn.completion.rows for turn in turns if turn.completion.rows is not None]


def write_rows(rows: Sequence[RoutingRows], directory: str | None) -> list[ReadRows]:
    """Write rows to a file that has no name.

    Args:
        rows: what to write; only read.
        directory: where; None for the system's folder of temporary files.

    Returns:
        What reads each run back, in the order of ``rows``. The file is closed with the last of them.

    Raises:
        OSError: the disk is full or the folder is not there.
    """
    file = NamelessFile(directory)
    spilled: list[ReadRows] = []
    offset = 0
    for each in rows:
        if len(each):
            file.append(np.ascontiguousarray(each.experts_RLK).data.cast("B"))
        row_bytes = each.size_bytes // max(1, len(each))
        spilled.append(SpilledRows(file=file, offset=offset, row_bytes=row_bytes))
        offset += each.size_bytes
    return spilled


async def spill(entry: SessionEntry, directory: str | None) -> int:
    """Move a session's rows to disk, and return the number of bytes of memory that this frees.

    Raises:
        OSError: it cannot be written; the rows stay where they are.
    """
    turns, rows = len(entry.session.forest), list_rows(entry)
    spilled = await asyncio.to_thread(write_rows, rows, directory)
    for each, read in zip(rows, spilled, strict=True):
        each.move(read)
    freed = sum(each.size_bytes for each in rows)
    entry.note_spilled(turns, freed)
    return freed
