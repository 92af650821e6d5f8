"""How a large body is built, read off its bytes before anything is made of them.

A reader makes objects of all values at once: three bytes of ``[],`` become eighty of memory, and no other thread runs
until all are made. So the values and the depth of a large body are counted first. The bytes are looked at block by
block with numpy, which lets other threads run meanwhile. What is no JSON is counted as well: its reader
refuses it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 1 << 20
"""How much is looked at in one piece: arrays of this size stay in the cache."""

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_IS_OPENING, _IS_CLOSING = (np.zeros(256, dtype=bool) for _ in range(2))
_IS_OPENING[list(b"[{")] = True
_IS_CLOSING[list(b"]}")] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonShape:
    """What a JSON text is made of."""

    values: int
    """About how many values it holds: its commas, arrays and objects; never less than half of them."""
    depth: int
    """How many objects and arrays lie in each other."""


def scan_json(body: bytes) -> JsonShape:
    """Count values and depth; what stands inside strings counts for nothing."""
    values, level, depth = 1, 0, 0
    for block in _iter_outside(body):
        opens, closes = _IS_OPENING[block], _IS_CLOSING[block]
        values += int(np.count_nonzero(opens)) + int(np.count_nonzero(block == _COMMA))
        steps = opens.astype(np.int32) - closes
        levels = np.cumsum(steps, dtype=np.int64)
        if len(levels):
            depth = max(depth, level + int(levels.max()))
            level += int(levels[-1])
    return JsonShape(values=values, depth=depth)


def _iter_outside(body: bytes) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes outside of strings, block by block."""
    is_inside, is_escaped = False, False
    for start in range(0, len(body), BLOCK_BYTES):
        block = np.frombuffer(body, dtype=np.uint8, count=min(BLOCK_BYTES, len(body) - start), offset=start)
        quotes = block == _QUOTE
        is_escaped = _clear_escaped(block, quotes, is_escaped)
        # True from an opening quote on, and behind a closing one no longer.
        inside: NDArray[Any] = np.logical_xor.accumulate(quotes) ^ is_inside
        is_inside = bool(inside[-1])
        yield block[~inside]


def _clear_escaped(block: NDArray[np.uint8], quotes: NDArray[Any], is_escaped: bool) -> bool:
    """Take escaped quotes out of the quotes; returns whether the block ends with a backslash that escapes.

    Of a run of backslashes each second one is escaped by the one before it, and the last escapes what follows unless it
    is escaped itself.
    """
    if is_escaped:
        quotes[0] = False
    places = np.flatnonzero(block == _BACKSLASH)
    if is_escaped and len(places) and places[0] == 0:
        places = places[1:]
    if not len(places):
        return False
    is_first = np.diff(places, prepend=places[0] - 2) != 1
    firsts = np.maximum.accumulate(np.where(is_first, places, 0))
    escaped = places[(places - firsts) % 2 == 0] + 1
    quotes[escaped[escaped < len(block)]] = False
    return bool(escaped[-1] == len(block))
