"""Runs of items, in memory or stored.

1. A run has an axis of items, and takes over another as it stands, read or not.
2. Stored items are looked at without being read, and a run without items is not looked at.
"""

from typing import Any

import numpy as np
import pytest

from turnkeeper.channels import ItemRun


def test_a_single_value_is_no_run() -> None:
    with pytest.raises(ValueError, match="axis of items"):
        ItemRun(np.array(7))


def test_a_run_takes_over_another_as_it_stands() -> None:
    def read(start: int, into: Any) -> None:
        into[:] = np.arange(start, start + len(into))

    held, stored = ItemRun(np.arange(3)), ItemRun.stored(read, shape=(3,), dtype=np.dtype(np.int64), start=4)
    assert [repr(each) for each in (held, stored)] == [
        "<ItemRun (3,) int64, in memory>",
        "<ItemRun (3,) int64, stored>",
    ]
    assert [ItemRun.over(each).in_memory for each in (held, stored)] == [True, False]
    assert ItemRun.over(held).array.tolist() == [0, 1, 2]
    assert ItemRun.over(stored).array.tolist() == [4, 5, 6]


@pytest.mark.parametrize(("count", "looks"), [(3, [(4, 0)]), (0, [])])
def test_stored_items_are_looked_at_without_being_read(count: int, looks: list[tuple[int, int]]) -> None:
    seen: list[tuple[int, int]] = []
    run = ItemRun.stored(
        lambda start, into: seen.append((start, len(into))), shape=(count,), dtype=np.dtype(np.int64), start=4
    )
    run.check()
    assert seen == looks
