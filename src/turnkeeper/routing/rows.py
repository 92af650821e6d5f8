"""Routing rows as values.

Row i of a path is the routing of token i *as input*; the forward that samples token p is row p-1, so a path of N
tokens has N-1 rows.
Knows nothing of payloads (codec) or of which rows a turn owns (patches).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def choose_dtype(num_experts: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned dtype that holds the ids of so many experts: uint8 up to 256, uint16 beyond."""
    if not 0 < num_experts <= 65536:
        raise ValueError(f"an expert count lies in 1..65536, got {num_experts}")
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoutingRows:
    """A run of consecutive rows."""

    experts_RLK: NDArray[np.unsignedinteger]
    """Shape [rows, layers, topk], uint8 or uint16, read-only: the expert ids, in the order the engine gave them."""

    def __post_init__(self) -> None:
        """Three axes, small dtype, read-only from here on."""
        if self.experts_RLK.ndim != 3 or self.experts_RLK.dtype.str not in ("|u1", "<u2"):
            raise ValueError(f"rows are [R, L, K] uint8/uint16, got {self.experts_RLK.shape} {self.experts_RLK.dtype}")
        self.experts_RLK.setflags(write=False)

    def __len__(self) -> int:
        """The number of rows."""
        return self.experts_RLK.shape[0]

    @property
    def size_bytes(self) -> int:
        """The memory that the rows take, in bytes."""
        return self.experts_RLK.nbytes

    def cut(self, start: int, stop: int) -> "RoutingRows":
        """Rows start..stop of this run; a view.

        Raises:
            ValueError: the range is not inside the run.
        """
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"rows {start}..{stop} are not inside 0..{len(self)}")
        return RoutingRows(experts_RLK=self.experts_RLK[start:stop])

    def relocate(self, experts_RLK: NDArray[np.unsignedinteger]) -> None:
        """Hold the same ids in other memory, such as a mapped file. The value does not change.

        Raises:
            ValueError: another shape or dtype.
        """
        if experts_RLK.shape != self.experts_RLK.shape or experts_RLK.dtype != self.experts_RLK.dtype:
            raise ValueError(
                f"rows are {self.experts_RLK.shape} {self.experts_RLK.dtype}, the other memory holds "
                f"{experts_RLK.shape} {experts_RLK.dtype}"
            )
        object.__setattr__(self, "experts_RLK", experts_RLK)

    def equals(self, other: "RoutingRows") -> bool:
        """Return True when two runs hold the same ids in the same shape."""
        return np.array_equal(self.experts_RLK, other.experts_RLK)


def join_rows(runs: Sequence[RoutingRows]) -> RoutingRows:
    """Join runs of rows that follow one another.

    Raises:
        ValueError: there is no run, or runs differ in layers or top-k.
    """
    return RoutingRows(experts_RLK=np.concatenate([run.experts_RLK for run in runs]))
