"""Routing rows as values.

Row i of a path is the routing of token i *as input*; the forward that samples token p is row p-1, so a path of N
tokens has N-1 rows. Knows nothing of payloads (codec) or of which rows a turn owns (patches).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.run import ItemRun, join_arrays


def choose_dtype(num_experts: int) -> np.dtype[np.unsignedinteger]:
    """Choose the smallest unsigned dtype that holds the ids of so many experts: uint8 up to 256, uint16 beyond."""
    if not 0 < num_experts <= 65536:
        raise ValueError(f"an expert count lies in 1..65536, got {num_experts}")
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


class RoutingRows(ItemRun):
    """A run of consecutive rows, of shape [rows, layers, topk] and dtype uint8 or uint16."""

    __slots__ = ()

    def __init__(self, *, experts_RLK: NDArray[np.unsignedinteger]) -> None:
        """Hold rows in memory; the array is read-only from here on.

        Raises:
            ValueError: the array has other than three axes, or is neither uint8 nor little-endian uint16.
        """
        super().__init__(experts_RLK)

    def _take_form(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if len(shape) != 3 or dtype.str not in ("|u1", "<u2"):
            raise ValueError(f"rows are [R, L, K] uint8/uint16, got {shape} {dtype}")
        super()._take_form(shape, dtype)

    @property
    def experts_RLK(self) -> NDArray[np.unsignedinteger]:  # noqa: N802 - axes are capitals
        """The expert ids, read-only and in the order the engine gave them; stored rows are read anew each time.

        Raises:
            OSError: stored rows cannot be read.
        """
        return self.array


def join_rows(runs: Sequence[RoutingRows]) -> RoutingRows:
    """Join runs of rows that follow one another, into memory.

    Raises:
        ValueError: there is no run, or runs differ in layers, top-k or dtype.
        OSError: stored rows cannot be read.
    """
    return RoutingRows(experts_RLK=join_arrays(runs))
