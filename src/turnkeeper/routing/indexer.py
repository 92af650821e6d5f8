"""The choices of the sparse-attention indexer: every payload has those of a whole path, a turn keeps what it adds.

::

    turn 0    payload 0..9     kept 0..9
    turn 1    payload 0..19    kept 9..19, where rows 0..9 are those that turn 0 keeps; else all of them

So the rows of a path are those of its last turn's payload, byte for byte, and each is held once.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from turnkeeper.errors import AssemblyError


def keep_added(payload_RLK: NDArray[np.int32], held: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """Cut a turn's payload to what the turn keeps of it.

    Args:
        payload_RLK: shape [rows, layers, topk]; the rows of the turn's whole path, read-only.
        held: the rows of the parent's path, in pieces; none where its turns hold none.

    Returns:
        The rows behind those held, or all of them where the payload has other rows in their place.
    """
    at = 0
    for piece in held:
        if not np.array_equal(payload_RLK[at : at + len(piece)], piece):
            return payload_RLK
        at += len(piece)
    if not at:
        return payload_RLK
    added = payload_RLK[at:].copy()  # a view would hold all of them
    added.setflags(write=False)
    return added


def list_pieces(kept: Sequence[NDArray[np.int32] | None], path_tokens: Sequence[int]) -> tuple[NDArray[np.int32], ...]:
    """List the rows of a path in pieces.

    Args:
        kept: what each turn of the path keeps, from the root.
        path_tokens: the length of the path at the end of each of these turns; parallel to ``kept``.

    Returns:
        Pieces that together have ``path_tokens[-1] - 1`` rows; none where the last turn keeps none.

    Raises:
        AssemblyError: they do not come to so many rows.
    """
    if not kept or kept[-1] is None:
        return ()
    pieces: list[NDArray[np.int32]] = []
    missing = path_tokens[-1] - 1
    for rows in reversed(kept):
        if rows is None or (pieces and not missing):
            break
        pieces.append(rows)
        missing -= len(rows)
    if missing:
        raise AssemblyError(
            f"the indexer rows that the turns of a path of {path_tokens[-1]} tokens hold leave {missing} out"
        )
    return tuple(reversed(pieces))
