"""The rows that a path holds, compared with later ones.

1. Differing rows are counted, however the rows are cut into patches and the payload into blocks.
2. Only what stands of the stored rows counts: a turn may hold all rows of its path.
3. An id outside the small dtype is a difference.
4. Rows that a store has lost are not compared, and those behind them are.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.routing.builders import build_ids, build_rows
from turnkeeper.channels.routing import RoutingRows
from turnkeeper.channels.routing.held import HeldRows
from turnkeeper.errors import StoreRecordError

WHOLE = build_ids(12)


def _cut(array: np.ndarray, places: list[int]) -> list[np.ndarray]:
    return np.split(array, sorted(min(place, len(array)) for place in places))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 12),
    st.lists(st.integers(0, 12), max_size=4),
    st.lists(st.integers(0, 12), max_size=4),
    st.sets(st.integers(0, 11)),
    st.integers(0, 12),
)
def test_rows_that_differ_are_counted(
    held: int, patch_cuts: list[int], block_cuts: list[int], changed: set[int], first: int
) -> None:
    later = WHOLE.copy()
    later[list(changed)] = build_ids(1, seed=3) + 8
    rows = HeldRows([build_rows(patch) for patch in _cut(WHOLE[:held], patch_cuts)], held)
    found, row = 0, first
    for block in _cut(later[first:], block_cuts):
        found += rows.count_changed(block, row)
        row += len(block)
    assert found == len([row for row in changed if first <= row < held])


def test_rows_before_a_whole_payload_do_not_count() -> None:
    rows = HeldRows([build_rows(build_ids(5, seed=4)), build_rows(WHOLE)], 12)
    assert rows.count_changed(WHOLE, 0) == 0


def test_nothing_is_compared_where_nothing_is_given() -> None:
    assert HeldRows([], 12).count_changed(WHOLE, 0) == 0


@pytest.mark.parametrize("rows", [11, 13], ids=["too-many", "too-few"])
def test_rows_of_another_path_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=f"come to 12 rows of a path that holds {rows}"):
        HeldRows([build_rows(WHOLE)], rows)


def test_an_id_that_only_looks_equal_in_the_small_dtype_differs() -> None:
    stored = np.full((1, 1, 1), 255, np.int32)
    assert HeldRows([build_rows(stored)], 1).count_changed(np.full((1, 1, 1), -1, np.int32), 0) == 1


def test_rows_that_a_store_has_lost_are_not_compared() -> None:
    def refuse(start: int, out: object, /) -> None:
        raise StoreRecordError("lost")

    whole = build_rows(WHOLE)
    lost = RoutingRows.stored(refuse, shape=(5, *whole.shape[1:]), dtype=whole.dtype)
    rows = HeldRows([whole.cut(0, 4), lost, whole.cut(9, 12)], 12)
    other = WHOLE.copy()
    other[2], other[6], other[11] = other[2] ^ 1, other[6] ^ 1, other[11] ^ 1
    found = sum(rows.count_changed(other[start : start + 3], start) for start in range(0, 12, 3))
    assert found == 2
