"""Models that are not trained: turns for which the agent asked for another model than those that are.

1. A path ends at its last trained turn; what stands behind it is in no sample. A path without such a turn gives none.
2. Inside a path the tokens of other models stay, without loss, for the reason ``hook``.
3. A turn of another model takes no leaf's place.
4. A request that names no model is trained; without ``--train-models`` everything is.
5. Once: every token is accounted for, and those of trained turns train as often as they would without the others.
"""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.builders import LINEAR, TREE, Story
from turnkeeper.core import DropReason, MaskReason, Turn
from turnkeeper.samples import Collection, CollectOptions, EmptyReason, load_hooks

POLICY = ["policy"]
KEEP = CollectOptions(hooks=load_hooks(picker="keep_siblings"))


def ends(collection: Collection) -> list[int]:
    return sorted(sample.metadata["leaf"]["node_id"] for sample in collection.samples)


def causes(collection: Collection) -> dict[int, str]:
    return {leaf.turn_id: leaf.cause for leaf in collection.dropped_leaves}


def test_a_path_ends_at_its_last_trained_turn() -> None:
    story = Story(TREE)
    first = story.say([1], [2, 3], model="policy")
    second = story.say([4], [5, 6], after=first, model="policy")
    story.say([7], [8], after=second, model="small")
    collection = story.collect(train_models=POLICY)
    (sample,) = collection.samples
    assert ends(collection) == [1]
    assert sample.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert sample.loss_mask.tolist() == [1, 1, 0, 1, 1]
    assert collection.ledger.dropped == {DropReason.NOT_PICKED: 1}
    assert (causes(collection), collection.ledger.unaccounted) == ({2: "other_model"}, 0)


def test_a_path_that_stands_on_another_path_gives_no_sample_of_its_own() -> None:
    story = Story(TREE)
    first = story.say([1], [2], model="policy")
    story.say([3], [4], after=first, model="small")
    story.say([5], [6], after=first, model="policy")
    collection = story.collect(train_models=POLICY)
    assert ends(collection) == [2]
    assert (collection.ledger.trainable, causes(collection)) == (2, {1: "other_model"})


def test_a_path_without_a_trained_turn_gives_no_sample() -> None:
    story = Story(TREE)
    story.say([1], [2, 3], model="small")
    collection = story.collect(train_models=POLICY)
    assert (collection.samples, collection.empty_reason) == ((), EmptyReason.ALL_TRUNCATED)
    assert collection.ledger.dropped == {DropReason.NOT_PICKED: 2}


def test_tokens_of_other_models_inside_a_path_carry_no_loss() -> None:
    story = Story(TREE)
    first = story.say([1], [2, 3], model="policy")
    second = story.say([4], [5, 6], after=first, model="small")
    story.say([7], [8], after=second, model="policy")
    collection = story.collect(train_models=POLICY)
    (sample,) = collection.samples
    assert sample.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sample.loss_mask.tolist() == [1, 1, 0, 0, 0, 0, 1]
    assert sample.rollout_log_probs[3] == pytest.approx(-0.5)
    assert sample.metadata["turnkeeper"]["masked"] == [{"reason": "hook", "start": 3, "end": 5}]
    assert [turn["model"] for turn in sample.metadata["turnkeeper"]["turns"]] == ["policy", "small", "policy"]
    assert collection.ledger.masked == {MaskReason.HOOK: 2}


def test_a_turn_of_another_model_takes_no_leafs_place() -> None:
    story = Story(TREE)
    first = story.say([1], [2], model="policy")
    story.say([3], [4], after=first, model="policy")
    story.say([5], [6], after=first, model="small")
    assert ends(story.collect(train_models=POLICY)) == [1]
    assert ends(story.collect()) == [2]


def test_a_retry_with_another_model_leaves_the_first_reply() -> None:
    story = Story(TREE)
    story.say([1], [2], text="same", model="policy")
    story.say([1], [3], text="same", model="fallback")
    assert ends(story.collect(train_models=POLICY)) == [0]
    assert ends(story.collect(train_models=["policy", "fallback"])) == [1]


def test_under_linear_the_sample_is_the_live_path_up_to_its_last_trained_turn() -> None:
    story = Story(LINEAR)
    first = story.say([1], [2], model="policy")
    story.say([3], [4], after=first, model="small")
    collection = story.collect(train_models=POLICY)
    (sample,) = collection.samples
    assert (sample.tokens.tolist(), collection.ledger.unaccounted) == ([1, 2], 0)
    assert story.collect(train_models=["other"]).samples == ()


@pytest.mark.parametrize(
    ("asked", "train_models", "is_trained"),
    [
        pytest.param("policy", ["policy"], True, id="named"),
        pytest.param("policy", ["other", "policy"], True, id="one of several"),
        pytest.param("policy", [], True, id="no list"),
        pytest.param("", ["policy"], True, id="names no model"),
        pytest.param("Policy", ["policy"], False, id="another spelling"),
        pytest.param("policy-2", ["policy"], False, id="a longer name"),
        pytest.param("claude-sonnet-4-5[1m]", ["claude-sonnet-4-5[1m]"], True, id="brackets"),
        pytest.param("org/model", ["org/model"], True, id="a slash"),
    ],
)
def test_names_are_compared_as_they_are_spelled(asked: str, train_models: list[str], is_trained: bool) -> None:
    story = Story(TREE)
    story.say([1], [2], model=asked)
    assert bool(story.collect(train_models=train_models).samples) is is_trained


@given(
    turns=st.lists(st.tuples(st.floats(0, 1), st.sampled_from(["policy", "small", ""]), st.integers(1, 3)), max_size=9)
)
@settings(max_examples=100, deadline=None)
def test_trained_turns_train_once_and_others_never(turns: list[tuple[float, str, int]]) -> None:
    story, ids = Story(TREE), count(1)
    told: list[Turn] = []
    trained: set[int] = set()
    sampled = 0
    for place, model, size in turns:
        parent = None if place < 0.2 or not told else told[int((place - 0.2) / 0.81 * len(told))]
        completion = [next(ids) for _ in range(size)]
        told.append(story.say([next(ids)], completion, after=parent, model=model))
        trained |= set(completion) if model != "small" else set()
        sampled += size
    collection = story.collect(KEEP, train_models=POLICY)
    seen = Counter(
        token
        for sample in collection.samples
        for token, has_loss in zip(
            sample.tokens[len(sample.tokens) - sample.response_length :].tolist(), sample.loss_mask, strict=True
        )
        if has_loss
    )
    assert seen == Counter(dict.fromkeys(trained, 1))
    assert (collection.ledger.sampled, collection.ledger.unaccounted) == (sampled, 0)
    paths = [set(sample.metadata["leaf"]["path_node_ids"]) for sample in collection.samples]
    assert all(not (one < other) for one in paths for other in paths)
