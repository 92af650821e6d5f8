"""A run of items that follow one another on a path, as one array with an item in each place of its first axis.

Runs lie in memory, or where a store keeps them, from which they are read when asked for: items are by far the largest
part of a session, and are only looked at when samples are made. Knows nothing of what the items mean.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class ReadItems(Protocol):
    """Reads a stored run. Any thread may call it, several at once."""

    def __call__(self, start: int, out: NDArray[Any], /) -> None:
        """Fill ``out``, shape [some, ...] and contiguous, with the stored items from ``start`` on.

        Raises:
            OSError: the items cannot be read.
            StoreRecordError: they are not those that were stored; told also where none of them is asked for.
        """
        ...


class ItemRun:
    """A run of consecutive items, of shape [items, ...]."""

    __slots__ = ("_array", "_read", "_start", "dtype", "shape")

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(self, array: NDArray[Any]) -> None:
        """Hold items in memory; the array is read-only from here on.

        Raises:
            ValueError: the array has another form than these items have.
        """
        self._take_form(array.shape, array.dtype)
        array.setflags(write=False)
        self._array: NDArray[Any] | None = array
        self._read: ReadItems | None = None
        self._start = 0

    @classmethod
    def stored(cls, read: ReadItems, *, shape: tuple[int, ...], dtype: np.dtype[Any], start: int = 0) -> Self:
        """Return items that are stored, without reading them.

        Args:
            read: reads them.
            shape: the form of this run, [items, ...].
            dtype: that of the items.
            start: the stored item that this run begins with.

        Raises:
            ValueError: these items have another form.
        """
        run = object.__new__(cls)
        run._take_form(shape, dtype)
        run._array, run._read, run._start = None, read, start
        return run

    @classmethod
    def over(cls, run: "ItemRun") -> Self:
        """Return the items of any run as those of this kind.

        Raises:
            ValueError: they have another form.
        """
        made = object.__new__(cls)
        made._take_form(run.shape, run.dtype)
        made._array, made._read, made._start = run._array, run._read, run._start
        return made

    def _take_form(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Take the shape and the dtype of the items; a kind of run refuses those that its items never have."""
        if not shape:
            raise ValueError("a run has an axis of items, got a single value")
        self.shape, self.dtype = shape, dtype

    @property
    def runs(self) -> "tuple[ItemRun, ...]":
        """The runs that make up the items: this one."""
        return (self,)

    def __len__(self) -> int:
        """Count the items."""
        return self.shape[0]

    def __repr__(self) -> str:
        where = "in memory" if self.in_memory else "stored"
        return f"<{type(self).__name__} {self.shape} {self.dtype}, {where}>"

    @property
    def array(self) -> NDArray[Any]:
        """The items, read-only; stored ones are read anew each time.

        Raises:
            OSError: stored items cannot be read.
        """
        held = self._array  # read once: the loop may move the items while a thread reads them
        if held is not None:
            return held
        out = np.empty(self.shape, dtype=self.dtype)
        self.read_into(out)
        out.setflags(write=False)
        return out

    @property
    def in_memory(self) -> bool:
        """True while the run itself holds its items in memory."""
        return self._array is not None

    @property
    def size_bytes(self) -> int:
        """The bytes of the items, in memory or where they are stored."""
        size = self.dtype.itemsize
        for count in self.shape:
            size *= count
        return size

    def read_into(self, out: NDArray[Any]) -> None:
        """Copy the items into an array of their shape and dtype.

        Raises:
            OSError: stored items cannot be read.
        """
        held = self._array
        if held is not None:
            out[...] = held
        elif self._read is not None and self.size_bytes:
            self._read(self._start, out)

    def check(self) -> None:
        """Check items that are stored, as far as nobody has: that they are there, and are those that were stored.

        Raises:
            OSError: they cannot be read.
            StoreRecordError: they are not those that were stored.
        """
        if self._array is None and self._read is not None and self.size_bytes:
            self._read(self._start, np.empty((0, *self.shape[1:]), dtype=self.dtype))

    def cut(self, start: int, stop: int) -> Self:
        """Return the items start..stop of this run, as a view or as a part of what is stored.

        Raises:
            ValueError: the range is not inside the run.
        """
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"items {start}..{stop} are not inside 0..{len(self)}")
        held, read = self._array, self._read
        part = object.__new__(type(self))
        part.shape, part.dtype = (stop - start, *self.shape[1:]), self.dtype
        part._array, part._read, part._start = (None if held is None else held[start:stop]), read, self._start + start
        return part

    def move(self, read: ReadItems) -> None:
        """Give up the items in memory, which are stored now; ``read`` reads them back. Their values do not change."""
        self._read, self._start = read, 0
        self._array = None

    def equals(self, other: "ItemRun") -> bool:
        """Return True when two runs hold the same items in the same shape."""
        return np.array_equal(self.array, other.array)


def join_arrays(runs: Sequence[ItemRun]) -> NDArray[Any]:
    """Join runs that follow one another to one array.

    Raises:
        ValueError: there is no run, or runs differ in the form of their items.
        OSError: stored items cannot be read.
    """
    forms = {(run.shape[1:], run.dtype) for run in runs}
    if len(forms) != 1:
        raise ValueError(f"runs of one path have one form, got {sorted(map(str, forms)) or 'no run'}")
    joined = np.empty((sum(map(len, runs)), *runs[0].shape[1:]), dtype=runs[0].dtype)
    start = 0
    for run in runs:
        run.read_into(joined[start : start + len(run)])
        start += len(run)
    return joined
