"""The indexer's rows of a path, each held once.

1. A turn keeps what its payload adds to the rows held, and all of it where the payload has other rows in their place.
2. Put together again, what the turns of a path keep is the payload of the last of them, byte for byte.
3. What the turns hold grows with the path, not with its square.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from turnkeeper.channels import ItemRun
from turnkeeper.channels.indexer import keep_added, list_pieces
from turnkeeper.errors import AssemblyError


def make_rows(*values: int, topk: int = 3) -> NDArray[np.int32]:
    """Rows of two layers, each of one value."""
    return np.array([np.full((2, topk), value) for value in values], dtype=np.int32).reshape(len(values), 2, topk)


@pytest.mark.parametrize(
    ("payload", "held", "kept"),
    [
        pytest.param(make_rows(1, 2), [], [1, 2], id="a root"),
        pytest.param(make_rows(1, 2, 3), [make_rows(1, 2)], [3], id="one more"),
        pytest.param(make_rows(1, 2, 3, 4), [make_rows(1), make_rows(2, 3)], [4], id="held in pieces"),
        pytest.param(make_rows(1, 2), [make_rows(1, 2)], [], id="nothing more"),
        pytest.param(make_rows(1, 9, 3), [make_rows(1, 2)], [1, 9, 3], id="another row in place of one held"),
        pytest.param(make_rows(9, 2, 3), [make_rows(1), make_rows(2)], [9, 2, 3], id="another first row"),
        pytest.param(make_rows(1, 2), [make_rows(1, 2, 3)], [1, 2], id="fewer rows than are held"),
        pytest.param(make_rows(1, 2), [make_rows(1, topk=4)], [1, 2], id="rows of another width"),
        pytest.param(make_rows(1, 2), [make_rows()], [1, 2], id="no row held"),
        pytest.param(make_rows(), [], [], id="no row"),
    ],
)
def test_a_turn_keeps_what_its_payload_adds(
    payload: NDArray[np.int32], held: list[NDArray[np.int32]], kept: list[int]
) -> None:
    payload.setflags(write=False)
    found = keep_added(payload, [ItemRun(each) for each in held])
    assert found.tolist() == make_rows(*kept).tolist()
    assert not found.flags.writeable
    assert found is payload or found.base is None


@pytest.mark.parametrize(
    ("kept", "path_tokens", "pieces"),
    [
        pytest.param([], [], [], id="no turn"),
        pytest.param([None], [3], [], id="a turn without"),
        pytest.param([make_rows(1, 2), None], [3, 4], [], id="a last turn without"),
        pytest.param([make_rows(1, 2)], [3], [[1, 2]], id="a root"),
        pytest.param([make_rows(1, 2), make_rows(3)], [3, 4], [[1, 2], [3]], id="two turns"),
        pytest.param([make_rows(1, 2), make_rows(7, 8, 9)], [3, 4], [[7, 8, 9]], id="a whole payload"),
        pytest.param([None, make_rows(7, 8, 9)], [3, 4], [[7, 8, 9]], id="a whole payload behind a turn without"),
        pytest.param(
            [make_rows(1), make_rows(4, 5), make_rows(6), make_rows(7, 8)],
            [2, 3, 4, 6],
            [[4, 5], [6], [7, 8]],
            id="a whole payload and what came after it",
        ),
    ],
)
def test_the_rows_of_a_path_are_found_from_its_end(
    kept: list[NDArray[np.int32] | None], path_tokens: list[int], pieces: list[list[int]]
) -> None:
    runs = [None if rows is None else ItemRun(rows) for rows in kept]
    assert [piece.array[:, 0, 0].tolist() for piece in list_pieces(runs, path_tokens)] == pieces


@pytest.mark.parametrize(("first", "missing"), [(None, 3), (make_rows(1), 2), (make_rows(1, 2, 3, 4), -1)])
def test_rows_that_nobody_holds_are_named(first: NDArray[np.int32] | None, missing: int) -> None:
    with pytest.raises(AssemblyError, match=f"a path of 5 tokens hold leave {missing} out"):
        list_pieces([None if first is None else ItemRun(first), ItemRun(make_rows(2))], [3, 5])


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=8))
def test_put_together_they_are_the_last_payload(turns: list[tuple[int, bool]]) -> None:
    """Each turn adds rows; where it is told to, its payload has another row in place of the first one."""
    payload, kept, path_tokens = make_rows(), [], []
    for number, (added, changes) in enumerate(turns):
        held = list_pieces(kept, path_tokens)
        payload = np.concatenate([payload, make_rows(*range(added))])
        if changes and len(payload):
            payload[0] = 100 + number
        payload.setflags(write=False)
        kept.append(ItemRun(keep_added(payload, held)))
        path_tokens.append(len(payload) + 1)
        pieces = list_pieces(kept, path_tokens)
        assert np.concatenate([make_rows(), *(piece.array for piece in pieces)]).tobytes() == payload.tobytes()
        payload = payload.copy()
    if not any(changes for _, changes in turns):
        assert sum(map(len, kept)) == len(payload)
