"""The ids of whole paths, joined once and then only appended to.

::

    buffer   [ p p p c c | p c c | p c ............ ]      one array, filled from the left
    turn 0   [---------]
    turn 1   [-----------------]                           views of the same buffer
    turn 2   [-----------------------]

A turn that continues the last one written, without trim, is written behind it; any other starts a new buffer with a
copy of its parent's path. What was written is never written again, so a view once handed out stays true.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnkeeper.core.tokens import NO_TOKENS, TokenIds
from turnkeeper.ids import TurnId

KEPT_PATHS = 4
"""The number of paths that are kept joined; other paths are joined when they are asked for."""


@dataclass(slots=True)
class _Buffer:
    ids: NDArray[np.int32]
    used: int


@dataclass(frozen=True, slots=True)
class _Place:
    buffer: _Buffer
    length: int

    def view(self) -> TokenIds:
        ids = self.buffer.ids[: self.length]
        ids.setflags(write=False)
        return ids


class PathIds:
    """The joined ids of the paths used last."""

    def __init__(self) -> None:
        self._places: OrderedDict[TurnId, _Place] = OrderedDict()
        self.size_bytes = 0
        """The memory that the buffers take in bytes, spare room included."""

    def find(self, turn_id: TurnId) -> TokenIds | None:
        """Find the ids of a turn's whole path; None where they are not held joined."""
        place = self._places.get(turn_id)
        if place is None:
            return None
        self._places.move_to_end(turn_id)
        return place.view()

    def extend(self, parent: TurnId | None, trim: int, pieces: tuple[TokenIds, ...], turn_id: TurnId) -> None:
        """Join the path of a turn: that of its parent, which is held or missing, without its last ``trim`` ids, and the
        pieces behind it."""
        known = None if parent is None else self._places[parent]
        start = 0 if known is None else known.length - trim
        length = start + sum(len(piece) for piece in pieces)
        buffer = self._choose_buffer(known, start, length)
        for piece in pieces:
            buffer.ids[buffer.used : buffer.used + len(piece)] = piece
            buffer.used += len(piece)
        self._places[turn_id] = _Place(buffer, length)
        if len(self._places) > KEPT_PATHS:
            self._places.popitem(last=False)
        buffers = {id(place.buffer): place.buffer.ids.nbytes for place in self._places.values()}
        self.size_bytes = sum(buffers.values())

    @staticmethod
    def _choose_buffer(known: _Place | None, start: int, length: int) -> _Buffer:
        if known is not None and known.buffer.used == start and length <= len(known.buffer.ids):
            return known.buffer
        ids = np.empty(length + length // 2, dtype=np.int32)
        ids[:start] = known.buffer.ids[:start] if known is not None else NO_TOKENS
        return _Buffer(ids, start)
