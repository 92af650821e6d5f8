"""The forest of turns and the ids of its paths.

1. Turns are found by id, parent and path; nothing is ever removed.
2. The ids of a path are the same however they are held; an array once handed out never changes.
3. Joining a path costs what the turn adds, and what is held stays bounded.
4. A label follows from the siblings and when they were asked and answered, however they interleave.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionkit import Talk, assistant, user
from turnkeeper.core import Label, Turn
from turnkeeper.core.pathids import KEPT_PATHS
from turnkeeper.ids import TurnId


def joined(talk: Talk, turn_id: int) -> list[int]:
    """The ids of a path, joined by hand."""
    ids: list[int] = []
    for turn in talk.session.forest.path(TurnId(turn_id)):
        ids = ids[: len(ids) - turn.prompt.trim] + turn.prompt.ids.tolist() + turn.completion.ids.tolist()
    return ids


def extend(talk: Talk, parent: Turn | None, text: str, *, trim: int = 0) -> Turn:
    messages = () if parent is None else talk.session.forest.path_messages(parent.id)
    return talk.commit(talk.begin(*messages, user(text)), f"reply to {text}", trim=trim)


def test_turns_are_found_by_id_parent_and_path() -> None:
    talk = Talk()
    root = extend(talk, None, "u")
    left, right = extend(talk, root, "l"), extend(talk, root, "r")
    forest = talk.session.forest
    assert forest.turns == (root, left, right)
    assert forest.last is right
    assert forest.get(left.id) is left
    assert forest.children(None) == (root.id,)
    assert forest.children(root.id) == (left.id, right.id)
    assert forest.children(left.id) == ()
    assert forest.leaves() == (left.id, right.id)
    assert forest.path(right.id) == (root, right)
    assert forest.path(None) == ()
    assert forest.path_messages(left.id)[-1] == assistant("reply to l")


@pytest.mark.parametrize("turn_id", [-1, 0, 5])
def test_a_turn_that_is_not_there_is_an_index_error(turn_id: int) -> None:
    with pytest.raises(IndexError):
        Talk().session.forest.get(TurnId(turn_id))


def test_an_array_once_handed_out_never_changes() -> None:
    talk = Talk()
    root = extend(talk, None, "u")
    handed_out = talk.session.forest.path_ids(root.id)
    before = handed_out.copy()
    for trim, text in ((0, "a"), (1, "b"), (0, "c")):
        talk.session.forest.path_ids(extend(talk, root, text, trim=trim).id)
    assert np.array_equal(handed_out, before)
    with pytest.raises(ValueError, match="read-only"):
        handed_out[0] = 1


@pytest.mark.parametrize("trim", [0, 1])
def test_a_path_that_is_no_longer_held_is_joined_again(trim: int) -> None:
    talk = Talk()
    turns = [extend(talk, None, "u")]
    for index in range(KEPT_PATHS + 6):
        turns.append(extend(talk, turns[-1 - index % 3 if index > 3 else -1], f"t{index}", trim=trim))
        talk.session.forest.path_ids(turns[-1].id)
    for turn in (*turns, *reversed(turns)):
        ids = talk.session.forest.path_ids(turn.id)
        assert ids.tolist() == joined(talk, turn.id)
        assert ids.dtype == np.int32
        assert len(ids) == turn.path_tokens


def test_a_path_that_only_grows_is_written_into_one_buffer() -> None:
    talk = Talk()
    turn = extend(talk, None, "u")
    bases: set[int] = set()
    for index in range(200):
        turn = extend(talk, turn, f"t{index}")
        base = talk.session.forest.path_ids(turn.id).base
        assert base is not None
        bases.add(base.__array_interface__["data"][0])
    assert len(bases) < 20


@dataclass
class Asked:
    """One request under a parent, as it was told; times count the requests asked and answered so far."""

    words: str
    begun: int
    answered: int = field(default=0)


def expect_label(told: list[Asked], at: int, *, is_root: bool) -> Label:
    """What the label means, by comparing with each sibling."""
    own = told[at]
    twins = [each for each in told if each is not own and each.words == own.words]
    if any(each.begun > own.answered for each in twins):
        return Label.SUPERSEDED
    if any(each.begun < own.answered and own.begun < each.answered for each in twins):
        return Label.PARALLEL
    if is_root:
        return Label.ROOT
    before = [each for each in told if each.answered < own.answered and each.words != own.words]
    return Label.BRANCH if before else Label.EXTENSION


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "next", "last"]), max_size=14), st.booleans())
def test_a_label_is_what_comparing_with_each_sibling_says(steps: list[str], is_root: bool) -> None:
    """``a`` and ``b`` are asked; ``next`` answers the oldest request that is open, ``last`` the newest."""
    talk = Talk()
    first = None if is_root else extend(talk, None, "u")
    history = () if first is None else talk.session.forest.path_messages(first.id)
    told, waiting = [], []
    for now, step in enumerate([*steps, *["next"] * len(steps)], 1):
        if step in "ab":
            waiting.append((talk.begin(*history, user(step)), Asked(step, now)))
        elif waiting:
            pending, asked = waiting.pop(0 if step == "next" else -1)
            asked.answered = now
            talk.commit(pending, f"reply {now}")
            told.append(asked)
    labels = [talk.session.forest.label(turn) for turn in talk.session.forest.children(None if first is None else 0)]
    assert labels == [expect_label(told, at, is_root=is_root) for at in range(len(told))]
