"""Routing rows as values.

1. Ids are kept in the smallest unsigned dtype that holds the expert count.
2. Rows are three axes, read-only; a cut is a view inside the run; joining keeps the order.
"""

import numpy as np
import pytest

from channels.routing.builders import build_ids, build_rows
from turnkeeper.channels.routing import RoutingRows
from turnkeeper.channels.routing.rows import choose_dtype, join_rows


@pytest.mark.parametrize(
    ("experts", "dtype"),
    [(1, np.uint8), (256, np.uint8), (257, np.uint16), (65536, np.uint16)],
    ids=["one", "a-byte", "one-more", "most"],
)
def test_the_dtype_is_the_smallest_that_holds_the_experts(experts: int, dtype: type) -> None:
    assert choose_dtype(experts) == np.dtype(dtype)


@pytest.mark.parametrize("experts", [0, -1, 65537], ids=["none", "negative", "too-many"])
def test_an_expert_count_outside_the_dtypes_is_refused(experts: int) -> None:
    with pytest.raises(ValueError, match=r"1\.\.65536"):
        choose_dtype(experts)


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 3), np.uint8), np.zeros((2, 3, 1), np.int32)],
    ids=["two-axes", "int32"],
)
def test_rows_of_another_form_do_not_exist(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8/uint16"):
        RoutingRows(experts_RLK=array)


def test_rows_cannot_be_written_to() -> None:
    rows = build_rows(build_ids(2))
    with pytest.raises(ValueError, match="read-only"):
        rows.experts_RLK[0, 0, 0] = 1


def test_a_cut_is_a_view_of_the_run() -> None:
    rows = build_rows(build_ids(5))
    cut = rows.cut(1, 4)
    assert len(cut) == 3
    assert cut.size_bytes == 3 * 3 * 2
    assert np.shares_memory(cut.experts_RLK, rows.experts_RLK)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 6)], ids=["before", "backwards", "beyond"])
def test_a_cut_outside_the_run_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not inside"):
        build_rows(build_ids(5)).cut(start, stop)


def test_joined_pieces_are_the_run_they_were_cut_from() -> None:
    rows = build_rows(build_ids(5))
    joined = join_rows([rows.cut(0, 2), rows.cut(2, 2), rows.cut(2, 5)])
    assert joined.equals(rows)
    assert not joined.equals(rows.cut(0, 4))


@pytest.mark.parametrize("forms", [(), (3, 2)], ids=["none", "two-forms"])
def test_runs_that_make_no_path_are_not_joined(forms: tuple[int, ...]) -> None:
    runs = [RoutingRows(experts_RLK=np.zeros((1, 2, topk), np.uint8)) for topk in forms]
    with pytest.raises(ValueError, match="runs of one path have one form"):
        join_rows(runs)


class Shelf:
    """Holds rows for others, and counts how often they are read."""

    def __init__(self, experts_RLK: np.ndarray) -> None:
        self.experts_RLK = experts_RLK
        self.reads: list[tuple[int, int]] = []

    def __call__(self, start: int, out_RLK: np.ndarray, /) -> None:
        self.reads.append((start, start + len(out_RLK)))
        out_RLK[...] = self.experts_RLK[start : start + len(out_RLK)]


def test_moved_rows_are_the_rows_they_were_and_are_read_when_asked_for() -> None:
    ids = build_ids(4)
    rows, shelf = build_rows(ids), Shelf(build_rows(ids).experts_RLK)
    before = (rows.shape, rows.dtype, rows.size_bytes, len(rows))
    rows.move(shelf)
    assert (rows.shape, rows.dtype, rows.size_bytes, len(rows)) == before
    assert (rows.in_memory, shelf.reads) == (False, [])
    assert rows.equals(build_rows(ids))
    assert not rows.experts_RLK.flags.writeable
    assert shelf.reads == [(0, 4), (0, 4)]


def test_a_cut_of_stored_rows_reads_its_own_rows_alone() -> None:
    ids = build_ids(9)
    shelf = Shelf(build_rows(ids).experts_RLK)
    rows = RoutingRows.stored(shelf, shape=(9, 3, 2), dtype=np.dtype(np.uint8))
    cut = rows.cut(2, 8).cut(1, 4)
    assert cut.equals(build_rows(ids[3:6]))
    assert len(rows.cut(5, 5).experts_RLK) == 0
    assert shelf.reads == [(3, 6)]
    with pytest.raises(ValueError, match="not inside"):
        cut.cut(0, 4)


def test_stored_rows_and_rows_in_memory_join() -> None:
    ids = build_ids(6)
    shelf = Shelf(build_rows(ids).experts_RLK)
    first = RoutingRows.stored(shelf, shape=(6, 3, 2), dtype=np.dtype(np.uint8)).cut(0, 4)
    assert join_rows([first, build_rows(ids[4:])]).equals(build_rows(ids))


def test_stored_rows_of_another_form_do_not_exist() -> None:
    with pytest.raises(ValueError, match="uint8/uint16"):
        RoutingRows.stored(Shelf(np.zeros((1, 1, 1))), shape=(1, 1), dtype=np.dtype(np.uint8))
