"""Routing rows as values.

Row i of a path is the routing of token i *as input*; the forward that samples token p is row p-1, so a path of N
tokens has N-1 rows. Rows lie in memory, or where a store keeps them, from which they are read when asked for.
Knows nothing of payloads (codec) or of which rows a turn owns (patches).
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


def choose_dtype(num_experts: int) -> np.dtype[np.unsignedinteger]:
    """Choose the smallest unsigned dtype that holds the ids of so many experts: uint8 up to 256, uint16 beyond."""
    if not 0 < num_experts <= 65536:
        raise ValueError(f"an expert count lies in 1..65536, got {num_experts}")
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


class ReadRows(Protocol):
    """Reads stored rows. Any thread may call it, several at once."""

    def __call__(self, start: int, out_RLK: NDArray[np.unsignedinteger], /) -> None:
        """Fill ``out_RLK``, shape [some, layers, topk] and contiguous, with the stored rows from ``start`` on.

        Raises:
            OSError: the rows cannot be read.
        """
        ...


class RoutingRows:
    """A run of consecutive rows, of shape [rows, layers, topk] and dtype uint8 or uint16."""

    __slots__ = ("_experts_RLK", "_read", "_start", "dtype", "shape")

    shape: tuple[int, int, int]
    dtype: np.dtype[np.unsignedinteger]

    def __init__(self, *, experts_RLK: NDArray[np.unsignedinteger]) -> None:
        """Hold rows in memory; the array is read-only from here on.

        Raises:
            ValueError: the array has other than three axes, or is neither uint8 nor little-endian uint16.
        """
        self._take_form(experts_RLK.shape, experts_RLK.dtype)
        experts_RLK.setflags(write=False)
        self._experts_RLK: NDArray[np.unsignedinteger] | None = experts_RLK
        self._read: ReadRows | None = None
        self._start = 0

    @classmethod
    def stored(
        cls, read: ReadRows, *, shape: tuple[int, ...], dtype: np.dtype[np.unsignedinteger], start: int = 0
    ) -> "RoutingRows":
        """Return rows that are stored, without reading them.

        Args:
            read: reads them.
            shape: the form of this run, [rows, layers, topk].
            dtype: uint8 or uint16.
            start: the stored row that this run begins with.

        Raises:
            ValueError: another form.
        """
        rows = object.__new__(cls)
        rows._take_form(shape, dtype)
        rows._experts_RLK, rows._read, rows._start = None, read, start
        return rows

    def _take_form(self, shape: tuple[int, ...], dtype: np.dtype[np.unsignedinteger]) -> None:
        if len(shape) != 3 or dtype.str not in ("|u1", "<u2"):
            raise ValueError(f"rows are [R, L, K] uint8/uint16, got {shape} {dtype}")
        self.shape, self.dtype = shape, dtype

    def __len__(self) -> int:
        """Count the rows."""
        return self.shape[0]

    def __repr__(self) -> str:
        where = "in memory" if self.in_memory else "stored"
        return f"<RoutingRows {self.shape} {self.dtype}, {where}>"

    @property
    def experts_RLK(self) -> NDArray[np.unsignedinteger]:  # noqa: N802 - axes are capitals
        """The expert ids, read-only and in the order the engine gave them; stored rows are read anew each time.

        Raises:
            OSError: stored rows cannot be read.
        """
        held_RLK = self._experts_RLK  # read once: the loop may move the rows while a thread reads them
        if held_RLK is not None:
            return held_RLK
        out_RLK = np.empty(self.shape, dtype=self.dtype)
        self.read_into(out_RLK)
        out_RLK.setflags(write=False)
        return out_RLK

    @property
    def in_memory(self) -> bool:
        """True while the rows themselves hold the ids in memory."""
        return self._experts_RLK is not None

    @property
    def size_bytes(self) -> int:
        """The bytes of the rows, in memory or where they are stored."""
        rows, layers, topk = self.shape
        return rows * layers * topk * self.dtype.itemsize

    def read_into(self, out_RLK: NDArray[np.unsignedinteger]) -> None:
        """Copy the rows into an array of their shape and dtype.

        Raises:
            OSError: stored rows cannot be read.
        """
        held_RLK = self._experts_RLK
        if held_RLK is not None:
            out_RLK[...] = held_RLK
        elif self._read is not None and len(self):
            self._read(self._start, out_RLK)

    def cut(self, start: int, stop: int) -> "RoutingRows":
        """Return the rows start..stop of this run, as a view or as a part of what is stored.

        Raises:
            ValueError: the range is not inside the run.
        """
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"rows {start}..{stop} are not inside 0..{len(self)}")
        held_RLK = self._experts_RLK
        if held_RLK is not None:
            return RoutingRows(experts_RLK=held_RLK[start:stop])
        assert self._read is not None
        shape = (stop - start, *self.shape[1:])
        return RoutingRows.stored(self._read, shape=shape, dtype=self.dtype, start=self._start + start)

    def move(self, read: ReadRows) -> None:
        """Give up the ids in memory, which are stored now; ``read`` reads them back. The value of the rows does not
        change."""
        self._read, self._start = read, 0
        self._experts_RLK = None

    def equals(self, other: "RoutingRows") -> bool:
        """Return True when two runs hold the same ids in the same shape."""
        return np.array_equal(self.experts_RLK, other.experts_RLK)


def join_rows(runs: Sequence[RoutingRows]) -> RoutingRows:
    """Join runs of rows that follow one another, into memory.

    Raises:
        ValueError: there is no run, or runs differ in layers, top-k or dtype.
        OSError: stored rows cannot be read.
    """
    forms = {(run.shape[1:], run.dtype) for run in runs}
    if len(forms) != 1:
        raise ValueError(f"runs of one path have one form, got {sorted(map(str, forms)) or 'no run'}")
    joined_RLK = np.empty((sum(map(len, runs)), *runs[0].shape[1:]), dtype=runs[0].dtype)
    start = 0
    for run in runs:
        run.read_into(joined_RLK[start : start + len(run)])
        start += len(run)
    return RoutingRows(experts_RLK=joined_RLK)
