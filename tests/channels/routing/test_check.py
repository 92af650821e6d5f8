"""Is this routing real?

1. Ids outside the experts, -1, a repeated id in a row of a layer that has experts, and rows that are zero in all
   layers are bad; the first bad row is named.
2. A layer that is zero in every row is dense and right.
3. Rows come back narrowed; ids of no expert are stored as 0.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from channels.routing.builders import SHAPE, build_ids
from turnkeeper.channels.routing import BadRow, RoutingShape, RowFault
from turnkeeper.channels.routing.check import find_repeated, narrow_rows
from turnkeeper.channels.routing.rows import choose_dtype


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Rows narrowed, and the first bad one."""

    narrow: np.ndarray
    bad: BadRow | None


def _check(ids: np.ndarray, shape: RoutingShape = SHAPE) -> Checked:
    narrow = np.full(ids.shape, 99, choose_dtype(shape.experts))
    stray = narrow_rows(ids, narrow, shape)
    return Checked(narrow=narrow, bad=find_repeated(narrow[: stray.row if stray else None]) or stray)


def _spoil(row: int, layer: int, ids: list[int]) -> np.ndarray:
    rows = build_ids(6)
    rows[row, layer] = ids
    return rows


@pytest.mark.parametrize(
    ("ids", "fault", "row"),
    [
        (_spoil(3, 1, [-1, -1]), RowFault.UNROUTED, 3),
        (_spoil(2, 2, [1, 8]), RowFault.OUT_OF_RANGE, 2),
        (_spoil(4, 0, [1, -7]), RowFault.OUT_OF_RANGE, 4),
        (_spoil(0, 1, [5, 5]), RowFault.REPEATED, 0),
        (_spoil(5, 1, [0, 0]), RowFault.REPEATED, 5),
        (np.zeros((4, 3, 2), np.int32), RowFault.ALL_ZERO, 0),
    ],
    ids=["minus-one", "too-large", "negative", "repeated", "one-row-of-zeros", "nothing-captured"],
)
def test_a_bad_row_is_found_with_its_fault(ids: np.ndarray, fault: RowFault, row: int) -> None:
    bad = _check(ids).bad
    assert bad is not None
    assert (bad.fault, bad.row) == (fault, row)


def test_the_first_of_several_bad_rows_is_named() -> None:
    ids = _spoil(4, 0, [-1, -1])
    ids[1, 2] = [6, 6]
    bad = _check(ids).bad
    assert bad is not None
    assert (bad.row, bad.detail) == (1, "layer 2 chooses [6, 6]")


def test_rows_behind_the_first_block_are_checked_too() -> None:
    ids = build_ids(9000)
    ids[8500, 1] = [3, 3]
    bad = _check(ids).bad
    assert bad is not None
    assert bad.row == 8500


@pytest.mark.parametrize("rows", [0, 1, 5], ids=["none", "one", "five"])
def test_good_rows_with_a_dense_layer_pass(rows: int) -> None:
    ids = build_ids(rows)
    ids[:, 0] = 0
    checked = _check(ids)
    assert checked.bad is None
    assert checked.narrow.dtype == np.uint8
    assert checked.narrow.tolist() == ids.tolist()


def test_an_id_of_no_expert_is_stored_as_zero() -> None:
    kept = _check(_spoil(3, 1, [-1, 6])).narrow
    assert kept[3, 1].tolist() == [0, 6]


def test_more_than_256_experts_are_kept_in_16_bits() -> None:
    shape = RoutingShape(layers=1, topk=2, experts=512)
    checked = _check(np.array([[[511, 300]]], np.int32), shape)
    assert checked.bad is None
    assert checked.narrow.dtype == np.uint16
    assert checked.narrow.tolist() == [[[511, 300]]]


@settings(max_examples=150, deadline=None)
@given(arrays(np.int32, st.tuples(st.integers(1, 5), st.just(2), st.just(3)), elements=st.integers(-1, 6)))
def test_the_first_bad_row_is_the_one_that_a_plain_search_finds(ids: np.ndarray) -> None:
    shape = RoutingShape(layers=2, topk=3, experts=6)
    table: list[list[list[int]]] = ids.tolist()

    def is_stray(row: list[list[int]]) -> bool:
        return any(not 0 <= expert < 6 for layer in row for expert in layer)

    sound = next((index for index, row in enumerate(table) if is_stray(row)), len(table))
    dense = [all(not any(row[layer]) for row in table[:sound]) for layer in range(2)]
    expected = None if sound == len(table) else sound
    for index in reversed(range(sound)):
        if any(len(set(layer)) < 3 and not dense[at] for at, layer in enumerate(table[index])):
            expected = index
    if sound and all(dense):
        expected = 0
    bad = _check(ids, shape).bad
    assert (bad.row if bad else None) == expected
