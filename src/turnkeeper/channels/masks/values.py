"""The masks of one turn as values: how many ids each has, the ids, and the log-probabilities within them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.run import ItemRun


class MaskItems:
    """The masks of a turn's completion of C tokens."""

    __slots__ = ("counts", "ids", "logprobs")

    def __init__(self, *, counts: ItemRun, ids: ItemRun, logprobs: ItemRun) -> None:
        """Hold masks.

        Args:
            counts: uint32 [C]: the number of ids of each mask, at least 1.
            ids: int32 [M]: the ids of all masks, as the engine ordered them.
            logprobs: float64 [C], the log-probability of each sampled token within its mask; or [0] where those of the
                completion are within the masks already, as vLLM's are.

        Raises:
            ValueError: the counts do not come to the ids, or the logprobs are not parallel to them.
        """
        if len(logprobs) not in (0, len(counts)):
            raise ValueError(f"{len(counts)} masks but {len(logprobs)} logprobs within them")
        self.counts, self.ids, self.logprobs = counts, ids, logprobs

    @property
    def runs(self) -> tuple[ItemRun, ...]:
        """The three runs, in the order in which they are stored."""
        return (self.counts, self.ids, self.logprobs)

    def __len__(self) -> int:
        """Count the masks."""
        return len(self.counts)

    def read_first(self, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read the number of ids of each of the first masks, and their ids.

        Raises:
            OSError: stored items cannot be read.
        """
        counts = self.counts.cut(0, count).array
        return counts, self.ids.cut(0, int(counts.sum())).array


def build_items(counts: NDArray[Any], ids: NDArray[Any], logprobs: NDArray[np.float64]) -> MaskItems:
    """Build masks of arrays, in the dtypes in which they are kept."""
    return MaskItems(
        counts=ItemRun(counts.astype(np.uint32)), ids=ItemRun(ids.astype(np.int32)), logprobs=ItemRun(logprobs)
    )


def join_items(parts: Sequence[MaskItems], count: int) -> MaskItems:
    """Join the masks of reply parts, and keep the first ``count``."""
    counts = np.concatenate([part.counts.array for part in parts])[:count]
    ids = np.concatenate([part.ids.array for part in parts])[: int(counts.sum())]
    return build_items(counts, ids, np.concatenate([part.logprobs.array for part in parts])[:count])
