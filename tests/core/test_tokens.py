"""Token ids as read-only values.

1. Ids are whole, 0..2**31-1, int32 and read-only; anything else is refused.
2. Joining keeps order; the common prefix ends at the first difference.
3. A span does not run backwards.
"""

import numpy as np
import pytest

from turnkeeper.core.tokens import NO_TOKENS, Span, count_common_prefix, freeze_ids, join_ids


@pytest.mark.parametrize("source", [[3, 1], (3, 1), np.array([3, 1], dtype=np.int64), iter([3, 1])], ids=type)
def test_ids_are_a_read_only_copy(source: list[int]) -> None:
    ids = freeze_ids(source)
    assert ids.tolist() == [3, 1]
    assert ids.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 5


def test_a_frozen_copy_does_not_follow_its_source() -> None:
    source = np.array([1, 2], dtype=np.int32)
    ids = freeze_ids(source)
    source[0] = 9
    assert ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        pytest.param([-1], "-1", id="negative"),
        pytest.param([2**31], "2147483648", id="too large"),
        pytest.param([1.0], "float64", id="not whole"),
        pytest.param([True], "bool", id="booleans"),
        pytest.param(np.zeros((1, 1), dtype=np.int32), "2-d", id="two axes"),
    ],
)
def test_what_is_no_list_of_ids_is_refused(source: list[int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        freeze_ids(source)


def test_no_ids_are_one_value() -> None:
    assert freeze_ids([]) is NO_TOKENS


def test_joined_ids_stand_one_after_the_other() -> None:
    joined = join_ids([freeze_ids([1, 2]), NO_TOKENS, freeze_ids([3])])
    assert joined.tolist() == [1, 2, 3]
    assert not joined.flags.writeable
    assert join_ids([]).tolist() == []
    assert NO_TOKENS.size == 0


@pytest.mark.parametrize(
    ("left", "right", "size"),
    [([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([1], [2], 0), ([], [1], 0), ([1, 2], [1, 2], 2)],
)
def test_the_common_prefix_ends_at_the_first_difference(left: list[int], right: list[int], size: int) -> None:
    assert count_common_prefix(freeze_ids(left), freeze_ids(right)) == size


def test_a_span_does_not_run_backwards() -> None:
    assert len(Span(start=2, stop=5)) == 3
    for start, stop in ((3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="start <= stop"):
            Span(start=start, stop=stop)
