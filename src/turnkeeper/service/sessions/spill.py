"""Moves what idle sessions keep of side channels to disk, where memory runs short.

Routing rows and the like are by far the largest part of a session and are only read when samples are collected. They
go to one file a session, which has no name: it ends with the session, also when the process is killed.
"""

import asyncio
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels import ItemRun, ReadItems
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
class SpilledItems:
    """One run of items in its file; called with an item's number, it reads the items from there on."""

    file: NamelessFile
    offset: int
    """Where the first item begins, in bytes."""
    item_bytes: int

    def __call__(self, start: int, out: NDArray[Any], /) -> None:
        """Fill an array with the items from ``start`` on."""
        if out.size:
            self.file.read_into(out.data.cast("B"), self.offset + start * self.item_bytes)


def list_runs(entry: SessionEntry) -> list[ItemRun]:
    """List the runs of items of a session that are still in memory."""
    turns = entry.session.forest.turns[entry.spilled_turns :]
    return [run for turn in turns for run in turn.completion.channel_runs]


def write_runs(runs: Sequence[ItemRun], directory: str | None) -> list[ReadItems]:
    """Write runs of items to a file that has no name.

    Args:
        runs: what to write; only read.
        directory: where; None for the system's folder of temporary files.

    Returns:
        What reads each run back, in the order of ``runs``. The file is closed with the last of them.

    Raises:
        OSError: the disk is full or the folder is not there.
    """
    file = NamelessFile(directory)
    spilled: list[ReadItems] = []
    offset = 0
    for each in runs:
        if each.size_bytes:
            file.append(np.ascontiguousarray(each.array).data.cast("B"))
        item_bytes = each.size_bytes // max(1, len(each))
        spilled.append(SpilledItems(file=file, offset=offset, item_bytes=item_bytes))
        offset += each.size_bytes
    return spilled


async def spill(entry: SessionEntry, directory: str | None) -> int:
    """Move a session's items of side channels to disk, and return the number of bytes of memory that this frees.

    Raises:
        OSError: it cannot be written; the items stay where they are.
    """
    turns, runs = len(entry.session.forest), list_runs(entry)
    spilled = await asyncio.to_thread(write_runs, runs, directory)
    for each, read in zip(runs, spilled, strict=True):
        each.move(read)
    freed = sum(each.size_bytes for each in runs)
    entry.note_spilled(turns, freed)
    return freed
