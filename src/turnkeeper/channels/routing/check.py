"""The check of routing rows: find the first row that no forward pass of the model can have produced.

Knows the marks that broken engines, routers and disaggregated deployments leave in rows; decides nothing about what
happens to the turn.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.routing.shape import RoutingShape

_BLOCK_ROWS = 4096
"""Rows compared at a time: a block of a large model (48 x 8 uint8, 1.5 MB) stays in the processor's cache."""


class RowFault(StrEnum):
    """The faults of a row."""

    WRONG_LENGTH = "wrong_length"
    """The payload has another number of bytes than its rows need; no row of it can be trusted."""
    UNROUTED = "unrouted"
    """An id is -1: the engine failed or padded the row."""
    OUT_OF_RANGE = "out_of_range"
    """An id is not that of an expert."""
    REPEATED = "repeated"
    """One row chooses the same expert twice in a layer that has experts."""
    ALL_ZERO = "all_zero"
    """Every id of every layer is zero: nothing was captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """The first row that cannot be right."""

    row: int
    """The index of the row, among the rows checked or in the path, as the function that returns it says."""
    fault: RowFault
    detail: str
    """Layer and ids, for the message."""


def narrow_rows(experts_RLK: NDArray[Any], out_RLK: NDArray[np.unsignedinteger], shape: RoutingShape) -> BadRow | None:
    """Write ids in their small dtype; an id that no expert has becomes 0.

    Args:
        experts_RLK: shape [rows, layers, topk], int32 or unsigned.
        out_RLK: where to; the same shape.
        shape: what a row of the model looks like.

    Returns:
        The first row with an id that no expert has, counted from the first given.
    """
    stray = _find_stray(experts_RLK, shape)
    if stray is None:
        np.copyto(out_RLK, experts_RLK, casting="unsafe")
        return None
    out_RLK[:] = 0
    valid = (experts_RLK >= 0) & (experts_RLK < shape.experts)
    np.copyto(out_RLK, experts_RLK, where=valid, casting="unsafe")
    return stray


def _find_stray(experts_RLK: NDArray[Any], shape: RoutingShape) -> BadRow | None:
    """Find the first row with an id outside 0..experts-1."""
    if not experts_RLK.size:
        return None
    # Seen as unsigned, a negative id is a huge one: one pass finds both.
    unsigned = experts_RLK.view(np.dtype(f"u{experts_RLK.itemsize}"))
    if unsigned.max() < shape.experts:
        return None
    row, layer, choice = (int(axis[0]) for axis in np.nonzero(unsigned >= shape.experts))
    value = int(experts_RLK[row, layer, choice])
    fault = RowFault.UNROUTED if value == -1 else RowFault.OUT_OF_RANGE
    return BadRow(row=row, fault=fault, detail=f"layer {layer} has id {value}, experts are 0..{shape.experts - 1}")


def find_repeated(experts_RLK: NDArray[np.unsignedinteger]) -> BadRow | None:
    """Find the first row that chooses an expert twice, or row 0 when no layer was captured at all.

    A layer that is zero in every row given has no experts (a dense layer): its repetitions are right.
    """
    if not experts_RLK.size:
        return None
    has_experts_L = experts_RLK.max(axis=0).any(axis=-1)
    if not has_experts_L.any():
        return BadRow(row=0, fault=RowFault.ALL_ZERO, detail=f"all {len(experts_RLK)} rows are zero in every layer")
    for start in range(0, len(experts_RLK), _BLOCK_ROWS):
        block = experts_RLK[start : start + _BLOCK_ROWS]
        repeats_RL = _mark_repeats(block) & has_experts_L
        if repeats_RL.any():
            row, layer = (int(axis[0]) for axis in np.nonzero(repeats_RL))
            ids = block[row, layer].tolist()
            return BadRow(row=start + row, fault=RowFault.REPEATED, detail=f"layer {layer} chooses {ids}")
    return None


def _mark_repeats(block_RLK: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
    """Return, in shape [rows, layers], True where two choices of a layer are equal."""
    rows, layers, topk = block_RLK.shape
    # Choices as planes: comparing whole planes pairwise is ten times faster than sorting each row.
    planes = np.ascontiguousarray(block_RLK.reshape(-1, topk).T)
    repeats = np.zeros(rows * layers, dtype=np.bool_)
    for left in range(topk):
        for right in range(left + 1, topk):
            repeats |= planes[left] == planes[right]
    return repeats.reshape(rows, layers)
