"""Token ids as values: read-only int32 arrays, and the few questions that sessions ask of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

TokenIds: TypeAlias = NDArray[np.int32]
"""Shape [T], int32, read-only."""

NO_TOKENS: TokenIds = np.empty(0, dtype=np.int32)
NO_TOKENS.setflags(write=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of token positions."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        """Check that the span does not run backwards."""
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"a span needs 0 <= start <= stop, got {self.start}..{self.stop}")

    def __len__(self) -> int:
        """Return the number of positions in the span."""
        return self.stop - self.start


def freeze_ids(ids: Iterable[int] | TokenIds) -> TokenIds:
    """Return a read-only copy of token ids, int32.

    Raises:
        ValueError: an id is negative, is not whole, or does not fit 32 bits.
    """
    source: NDArray[Any] = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
    if source.size == 0:
        return NO_TOKENS
    if source.ndim != 1 or source.dtype.kind not in "iu":
        raise ValueError(f"token ids are a flat list of whole numbers, got {source.ndim}-d {source.dtype}")
    if int(np.bitwise_or.reduce(source)) >> 31:  # one pass for both ends: a negative id sets the highest bit
        raise ValueError(f"token ids lie in 0..2**31-1, got {source.min()}..{source.max()}")
    frozen: TokenIds = source.astype(np.int32)
    frozen.setflags(write=False)
    return frozen


def join_ids(pieces: Sequence[TokenIds]) -> TokenIds:
    """Join pieces one after the other into one read-only array."""
    joined = np.concatenate(pieces) if pieces else NO_TOKENS.copy()
    joined = joined.astype(np.int32, copy=False)
    joined.setflags(write=False)
    return joined


def count_common_prefix(left: TokenIds, right: TokenIds) -> int:
    """Count the leading ids that two arrays share."""
    size = min(len(left), len(right))
    differing = np.flatnonzero(left[:size] != right[:size])
    return int(differing[0]) if differing.size else size
