"""Which rows a turn adds, and the whole rows of a path.

1. A turn takes its own patch out of an increment or a whole payload; what is held stays and changes are counted.
2. `latest` takes the whole payload instead.
3. Bad rows fail the turn with their likely cause, or are named by their place in the path.
4. Pieces of a resumed turn join to one patch, the first piece's rows first.
5. Assembled rows are tokens - 1, in order, across trims, branches and whole payloads.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.routing.builders import SHAPE, build_ids, build_rows, encode_ids
from turnkeeper.channels.routing import RowFault, assemble_rows, join_patches, plan_rows, take_patch
from turnkeeper.channels.routing.patch import count_equal
from turnkeeper.choices import OnBadRows, RowsKept
from turnkeeper.errors import AssemblyError, EngineProtocolError

# A parent of 6 tokens holds rows 0..5; its child adds a prompt of 3 and a completion of 2: rows 5..10.
WHOLE = build_ids(10)
HELD = build_rows(WHOLE[:5])


def _take(ids: np.ndarray, *, increments: bool, **options: object):
    return take_patch(
        encode_ids(ids),
        request=plan_rows(parent_tokens=6, common_prefix=6, use_addition_r3=increments),
        shape=SHAPE,
        prompt_tokens=9,
        completion_tokens=2,
        held=[HELD.cut(0, 2), HELD.cut(2, 5)],
        **options,  # pyright: ignore[reportArgumentType]
    )


def test_an_increment_and_a_whole_payload_give_the_same_patch() -> None:
    increment = _take(WHOLE[5:], increments=True)
    whole = _take(WHOLE, increments=False)
    assert increment.rows.equals(whole.rows)
    assert increment.rows.experts_RLK.tolist() == WHOLE[5:].tolist()
    assert (increment.start, increment.changed_rows, increment.bad) == (5, 0, None)
    assert (whole.start, whole.changed_rows, whole.bad) == (5, 0, None)


def test_rows_that_a_later_payload_computes_otherwise_are_counted_and_stay() -> None:
    recomputed = WHOLE.copy()
    recomputed[[0, 3]] = build_ids(2, seed=4)
    patch = _take(recomputed, increments=False)
    assert patch.changed_rows == 2
    assert patch.rows.experts_RLK.tolist() == WHOLE[5:].tolist()


def test_a_bad_row_among_those_held_already_does_not_matter() -> None:
    recomputed = WHOLE.copy()
    recomputed[2] = -1
    patch = _take(recomputed, increments=False)
    assert (patch.bad, patch.changed_rows) == (None, 1)


def test_latest_takes_the_whole_payload() -> None:
    recomputed = build_ids(10, seed=3)
    patch = _take(recomputed, increments=False, kept=RowsKept.LATEST)
    assert (patch.start, patch.changed_rows) == (0, 5)
    assert patch.rows.experts_RLK.tolist() == recomputed.tolist()


def test_latest_of_an_increment_is_the_increment() -> None:
    patch = _take(WHOLE[5:], increments=True, kept=RowsKept.LATEST)
    assert (patch.start, len(patch.rows)) == (5, 5)


def test_a_turn_that_holds_all_rows_is_all_that_is_compared() -> None:
    patch = take_patch(
        encode_ids(WHOLE),
        request=plan_rows(parent_tokens=6, common_prefix=6, use_addition_r3=False),
        shape=SHAPE,
        prompt_tokens=9,
        completion_tokens=2,
        held=[build_rows(build_ids(3, seed=5)), build_rows(WHOLE[:5])],
        kept=RowsKept.LATEST,
    )
    assert (patch.start, patch.changed_rows) == (0, 0)


@pytest.mark.parametrize("rows", [3, 7], ids=["too-few", "too-many"])
def test_stored_rows_of_another_path_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=f"come to {rows} rows of a path that holds 5"):
        take_patch(
            encode_ids(WHOLE),
            request=plan_rows(parent_tokens=6, common_prefix=6, use_addition_r3=False),
            shape=SHAPE,
            prompt_tokens=9,
            completion_tokens=2,
            held=[build_rows(build_ids(rows))],
        )


def _spoil(row: int, ids: int | list[int]) -> np.ndarray:
    rows = WHOLE.copy()
    rows[row, 1] = ids
    return rows


@pytest.mark.parametrize(
    ("ids", "fault", "row", "hint"),
    [
        (_spoil(6, -1), RowFault.UNROUTED, 6, "disaggregated"),
        (_spoil(9, -1), RowFault.UNROUTED, 9, "failed to capture"),
        (_spoil(8, [4, 4]), RowFault.REPEATED, 8, "failed to capture"),
        (_spoil(9, [4, 99]), RowFault.OUT_OF_RANGE, 9, "--num-experts"),
        (WHOLE * 0, RowFault.ALL_ZERO, 5, "--enable-return-routed-experts"),
        (WHOLE[:8], RowFault.WRONG_LENGTH, 5, "lost rows"),
    ],
    ids=["prompt", "last", "repeated", "no-expert", "all-zero", "cut"],
)
@pytest.mark.parametrize("increments", [True, False], ids=["increment", "whole"])
def test_bad_rows_fail_with_their_cause_or_are_named(
    ids: np.ndarray, fault: RowFault, row: int, hint: str, increments: bool
) -> None:
    sent = ids[5:] if increments else ids
    with pytest.raises(EngineProtocolError, match=f"{fault}.* from row {row}") as caught:
        _take(sent, increments=increments)
    assert hint in caught.value.hint
    assert (caught.value.facts["row"], caught.value.facts["fault"]) == (row, str(fault))
    patch = _take(sent, increments=increments, on_bad_rows=OnBadRows.MASK)
    assert patch.bad is not None
    assert (patch.bad.row, patch.bad.fault) == (row, fault)
    assert (patch.start, len(patch.rows)) == (5, 5)


@pytest.mark.parametrize("increments", [True, False], ids=["increment", "whole"])
def test_a_resumed_piece_adds_its_own_rows(increments: bool) -> None:
    """A prompt of 5, 4 tokens, an interruption, 6 more: 14 rows, the first 8 from the first payload."""
    first = take_patch(
        encode_ids(build_ids(8)),
        request=plan_rows(parent_tokens=0, common_prefix=0, use_addition_r3=increments),
        shape=SHAPE,
        prompt_tokens=5,
        completion_tokens=4,
    )
    later = build_ids(14, seed=5)
    request = plan_rows(parent_tokens=9, common_prefix=9, use_addition_r3=increments)
    second = take_patch(
        encode_ids(later[8:] if increments else later),
        request=request,
        shape=SHAPE,
        prompt_tokens=9,
        completion_tokens=6,
        held=[first.rows],
    )
    joined = join_patches([first, second])
    assert request.held_rows == 8
    assert joined.rows.experts_RLK.tolist() == [*build_ids(8).tolist(), *later[8:].tolist()]
    assert (joined.start, joined.changed_rows) == (0, 0 if increments else 8)


def test_pieces_with_a_gap_are_refused() -> None:
    piece = _take(WHOLE[5:], increments=True)
    with pytest.raises(EngineProtocolError, match="begin at 5, those before end at 10"):
        join_patches([piece, piece])


def test_the_first_bad_row_of_joined_pieces_is_kept() -> None:
    good = take_patch(
        encode_ids(build_ids(5)),
        request=plan_rows(parent_tokens=0, common_prefix=0, use_addition_r3=True),
        shape=SHAPE,
        prompt_tokens=4,
        completion_tokens=2,
    )
    bad = _take(_spoil(7, -1)[5:], increments=True, on_bad_rows=OnBadRows.MASK)
    assert join_patches([good, bad]).bad == bad.bad


def test_one_turn_is_its_own_path() -> None:
    rows = build_rows(build_ids(4))
    assert assemble_rows([rows], [5]) is rows


def test_a_whole_payload_replaces_what_stands_before_it() -> None:
    first, second, third = build_rows(build_ids(4)), build_rows(build_ids(9, seed=2)), build_rows(build_ids(3))
    whole = assemble_rows([first, second, third], [5, 10, 13])
    assert whole.experts_RLK.tolist() == [*second.experts_RLK.tolist(), *third.experts_RLK.tolist()]


@pytest.mark.parametrize("rows", [0, 3, 7], ids=["none", "too-few", "too-many"])
def test_a_turn_with_other_rows_than_its_own_is_named(rows: int) -> None:
    with pytest.raises(AssemblyError, match=rf"turn 1 .* {rows} routing rows; .* need rows 4\.\.9") as caught:
        assemble_rows([build_rows(build_ids(4)), build_rows(build_ids(rows))], [5, 10])
    assert caught.value.facts == {"turn": 1}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(1, 4), st.booleans()), min_size=1, max_size=5)
)
def test_rows_of_a_path_are_those_of_the_call_that_sampled(turns: list[tuple[int, int, int, bool]]) -> None:
    """A row is the number of the call that computed it; each position keeps the first call that fed its token."""
    tokens: list[str] = []
    owner: list[int] = []
    patches, lengths = [], []
    for call, (trim, prompt, completion, increments) in enumerate(turns):
        trim = trim if tokens else 0
        parent = len(tokens)
        tokens = tokens[: parent - trim] + ["x"] * (prompt + completion)
        rows = len(tokens) - 1
        owner = owner[: max(0, parent - 1)] + [call] * (rows - max(0, parent - 1))
        computed = np.broadcast_to([call % 7, 7], (rows, 3, 2))
        request = plan_rows(parent_tokens=parent, common_prefix=parent - trim, use_addition_r3=increments)
        patch = take_patch(
            encode_ids(computed[request.payload_start :]),
            request=request,
            shape=SHAPE,
            prompt_tokens=len(tokens) - completion,
            completion_tokens=completion,
            held=patches,
        )
        patches.append(patch.rows)
        lengths.append(len(tokens))
    whole = assemble_rows(patches, lengths)
    assert whole.experts_RLK[:, 0, 0].tolist() == [call % 7 for call in owner]
    assert len(whole) == len(tokens) - 1


@pytest.mark.parametrize(
    ("rows", "equal"),
    [
        ([], 0),
        ([1], 0),
        ([1] * 31, 0),
        ([1] * 32, 31),
        ([1] * 90, 89),
        ([1, 2] * 40, 0),
        ([1] * 31 + [2] * 31, 0),
        ([1] * 32 + [2] * 31 + [3] * 33, 31 + 32),
        ([1] * 32 + [2] + [1] * 32, 31 + 31),
        (list(range(90)), 0),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_repeats_are_counted_in_long_runs_of_equal_rows(rows: list[int], equal: int, dtype: type) -> None:
    one = np.array([[[row, 99], [98, row]] for row in rows], dtype=dtype).reshape(-1, 2, 2)
    assert count_equal(one) == equal


def test_rows_that_differ_in_one_choice_are_not_equal() -> None:
    rows = np.zeros((50, 48, 8), dtype=np.uint8)
    rows[np.arange(50), 47, 7] = np.arange(50)
    assert count_equal(rows) == 0
