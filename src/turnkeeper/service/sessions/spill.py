"""Moves the routing rows of idle sessions to disk, where memory runs short.

Rows are by far the largest part of a session and are only read when samples are collected. They go to one file a
session, mapped read-only and unlinked at once: the values stay what they were, the kernel decides what of them is in
memory, and the file ends with the session, also when the process is killed.
"""

import asyncio
import mmap
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnkeeper.routing import RoutingRows
from turnkeeper.service.sessions.entry import SessionEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Spilled:
    """One run of rows in its file."""

    rows: RoutingRows
    place: NDArray[np.unsignedinteger]
    """The values of these rows, mapped from the file."""


def list_rows(entry: SessionEntry) -> list[RoutingRows]:
    """List the routing rows of a session that are still in memory."""
    turns = entry.session.forest.turns[entry.spilled_turns :]
    return [turn.completion.rows for turn in turns if turn.completion.rows is not None]


def write_rows(rows: Sequence[RoutingRows], directory: str | None) -> list[Spilled]:
    """Write rows to a file that has no name any more, and map it.

    Args:
        rows: what to write; only read.
        directory: where; None for the system's folder of temporary files.

    Raises:
        OSError: the disk is full or the folder is not there.
    """
    size = sum(each.size_bytes for each in rows)
    if not size:
        return []
    with tempfile.TemporaryFile(dir=directory) as file:
        for each in rows:
            file.write(np.ascontiguousarray(each.experts_RLK).data)
        file.flush()
        mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    spilled: list[Spilled] = []
    offset = 0
    for each in rows:
        array = each.experts_RLK
        flat = np.frombuffer(mapped, dtype=array.dtype, count=array.size, offset=offset)
        spilled.append(Spilled(rows=each, place=flat.reshape(array.shape)))
        offset += array.nbytes
    return spilled


async def spill(entry: SessionEntry, directory: str | None) -> int:
    """Move a session's rows to disk, and return the number of bytes of memory that this frees.

    Raises:
        OSError: it cannot be written; the rows stay where they are.
    """
    turns, rows = len(entry.session.forest), list_rows(entry)
    spilled = await asyncio.to_thread(write_rows, rows, directory)
    for each in spilled:
        each.rows.relocate(each.place)
    freed = sum(each.rows.size_bytes for each in spilled)
    entry.note_spilled(turns, freed)
    return freed
