"""The rows that a path holds already, beside those that a later payload brings for the same tokens.

Knows nothing of which of the two a turn keeps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.routing.rows import RoutingRows
from turnkeeper.errors import StoreRecordError


class HeldRows:
    """Rows 0..n of a path as its turns store them, to be compared in the order of the path."""

    def __init__(self, patches: Sequence[RoutingRows], rows: int) -> None:
        """Find what stands of the stored rows.

        Args:
            patches: what the turns of the path store, in order; the last of them that together are ``rows`` rows
                stand, since a turn may hold all rows of its path. Empty: nothing is compared.
            rows: how many rows the path holds.

        Raises:
            ValueError: they do not come to so many rows.
        """
        since, missing = len(patches), rows if patches else 0
        while missing > 0 and since:
            since -= 1
            missing -= len(patches[since])
        if missing:
            raise ValueError(f"the stored rows come to {rows - missing} rows of a path that holds {rows}")
        self._standing = [patch for patch in patches[since:] if len(patch)]
        self._at = 0
        self._start = 0
        self._held_RLK: NDArray[np.unsignedinteger] | None = None

    def count_changed(self, block_RLK: NDArray[Any], row: int) -> int:
        """Count the rows of a block that differ from the held rows.

        Args:
            block_RLK: shape [some, layers, topk].
            row: the row of the path that the block begins with; never before that of an earlier call's end.
        """
        changed, stop = 0, row + len(block_RLK)
        while self._at < len(self._standing) and self._start < stop:
            held, count = self._read_held(), len(self._standing[self._at])
            low, high = max(row, self._start), min(stop, self._start + count)
            if low < high and len(held):
                changed += _count(held[low - self._start : high - self._start], block_RLK[low - row : high - row])
            if self._start + count > stop:
                break
            self._start += count
            self._at += 1
            self._held_RLK = None
        return changed

    def _read_held(self) -> NDArray[np.unsignedinteger]:
        """Return the rows of the turn that is compared now; none where its store has lost them."""
        if self._held_RLK is None:
            patch = self._standing[self._at]
            try:
                self._held_RLK = patch.experts_RLK
            except StoreRecordError:
                self._held_RLK = np.empty((0, *patch.shape[1:]), patch.dtype)
        return self._held_RLK


def _count(ours_RLK: NDArray[np.unsignedinteger], theirs_RLK: NDArray[Any]) -> int:
    if _is_equal(ours_RLK, theirs_RLK):
        return 0
    return int((ours_RLK != theirs_RLK).any(axis=(1, 2)).sum())


def _is_equal(ours_RLK: NDArray[np.unsignedinteger], theirs_RLK: NDArray[Any]) -> bool:
    """Return True when two arrays are equal. Where the rows allow it, they are compared eight bytes at a time, which
    takes an eighth of the memory."""
    row_bytes = ours_RLK.itemsize * ours_RLK[0].size
    if ours_RLK.dtype == theirs_RLK.dtype and row_bytes % 8 == 0:
        return np.array_equal(_view_words(ours_RLK), _view_words(theirs_RLK))
    return np.array_equal(ours_RLK, theirs_RLK)


def _view_words(rows_RLK: NDArray[Any]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(rows_RLK).reshape(len(rows_RLK), -1).view(np.uint64)
