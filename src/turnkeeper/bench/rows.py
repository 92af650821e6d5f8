"""Routing payloads of any length without work: slices of one text that was encoded before.

Row i of every path is row ``i % PERIOD`` of a table. Base64 spells three bytes in four characters, so a run of rows can
be cut out of an encoded text only where rows begin on such a boundary; three texts, each begun one row later, offer
one for every start.
"""

from dataclasses import dataclass

import numpy as np
import pybase64

from turnkeeper.channels.routing import RoutingShape

PERIOD = 768
"""Rows of the table: a multiple of three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """The rows of one shape, raw and encoded."""

    row_bytes: int
    raw: bytes
    """Two periods of the table."""
    encoded: tuple[memoryview, memoryview, memoryview]
    """Base64 of two periods, from rows 0, 1 and 2 on."""

    def cut(self, start: int, rows: int) -> list[memoryview | bytes]:
        """Return the base64 of the rows ``start .. start + rows`` in pieces."""
        pieces: list[memoryview | bytes] = []
        while rows >= 3:
            place = start % PERIOD
            count = min(rows // 3 * 3, PERIOD)
            first, text = place - place % 3, self.encoded[place % 3]
            begin = first * self.row_bytes * 4 // 3
            pieces.append(text[begin : begin + count * self.row_bytes * 4 // 3])
            start, rows = start + count, rows - count
        if rows:
            place = start % PERIOD
            pieces.append(pybase64.b64encode(self.raw[place * self.row_bytes : (place + rows) * self.row_bytes]))
        return pieces


def build_rows(shape: RoutingShape, seed: int) -> RowSource:
    """Build a table of rows whose experts are distinct within each layer."""
    first = np.random.default_rng(seed).integers(0, shape.experts, size=(PERIOD, shape.layers, 1))
    table = ((first + np.arange(shape.topk) * 3) % shape.experts).astype("<i4").tobytes()
    row_bytes = shape.layers * shape.topk * 4
    raw = table * 2 + table[: 2 * row_bytes]
    span = 2 * PERIOD * row_bytes
    texts = [memoryview(pybase64.b64encode(raw[phase * row_bytes :][:span])) for phase in range(3)]
    return RowSource(row_bytes=row_bytes, raw=raw, encoded=(texts[0], texts[1], texts[2]))
