"""The built-in pickers of our own.

1. The default picker leaves out what is rolled back; where every reply was delivered, nothing ran in parallel and no
   request was repeated, that is the reference trainer's rule.
2. `keep_siblings` leaves out only what the agent never saw.
3. Both give the longest path first, and of equals the leaf that was committed last.
4. Every sample says how many leaves were kept; a leaf that was kept although it is rolled back says so, and what was
   dropped is listed with its cause.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.builders import LINEAR, OPTIONS, TREE, Story
from turnkeeper.samples import CollectOptions, load_hooks

KEEP = CollectOptions(hooks=load_hooks(picker="keep_siblings"))


@st.composite
def _forests(draw: st.DrawFn) -> list[int | None]:
    """The parent of each node, in commit order."""
    size = draw(st.integers(1, 9))
    return [draw(st.none() | st.integers(0, node - 1)) if node else None for node in range(size)]


def _path(parents: list[int | None], node: int | None) -> list[int]:
    return [] if node is None else [*_path(parents, parents[node]), node]


def _tell(parents: list[int | None]) -> Story:
    story = Story(TREE)
    for node, parent in enumerate(parents):
        story.say([1], [10 + node], after=None if parent is None else story.session.forest.turns[parent])
    return story


@settings(max_examples=100, deadline=None)
@given(_forests())
def test_the_default_picker_starts_from_the_reference_rule(parents: list[int | None]) -> None:
    kept = [
        leaf
        for leaf in range(len(parents))
        if leaf not in parents
        and (parents[leaf] is None or all(parents[later] != parents[leaf] for later in range(leaf + 1, len(parents))))
    ]
    expected = sorted(kept, key=lambda leaf: (len(_path(parents, leaf)), leaf), reverse=True)
    assert _leaves(_tell(parents)) == expected


@settings(max_examples=50, deadline=None)
@given(_forests())
def test_keeping_siblings_keeps_every_leaf(parents: list[int | None]) -> None:
    leaves = [leaf for leaf in range(len(parents)) if leaf not in parents]
    expected = sorted(leaves, key=lambda leaf: (len(_path(parents, leaf)), leaf), reverse=True)
    assert _leaves(_tell(parents), KEEP) == expected


def _leaves(story: Story, options: CollectOptions | None = None) -> list[int]:
    samples = story.collect(options).samples if options else story.collect().samples
    return [sample.metadata["leaf"]["node_id"] for sample in samples]


def test_a_retried_leaf_is_left_out_and_counted_as_superseded() -> None:
    story = Story(TREE)
    root = story.say([1], [11])
    story.say([2], [12, 13], after=root, text="again")
    story.say([2], [14], after=root, text="again")
    assert _leaves(story) == [2]
    assert story.collect().ledger.dropped == {"superseded": 2}


def test_an_earlier_branch_is_left_out_as_not_picked() -> None:
    story = Story(TREE)
    root = story.say([1], [11])
    story.say([2], [12], after=root, text="one way")
    story.say([3], [13], after=root, text="another")
    assert _leaves(story) == [2]
    assert story.collect().ledger.dropped == {"not_picked": 1}
    assert _leaves(story, KEEP) == [2, 1]


def test_parallel_leaves_are_kept() -> None:
    story = Story(TREE)
    root = story.say([1], [11])
    first, second = story.begin(root, "best of two"), story.begin(root, "best of two")
    story.commit(first, [2], [12])
    story.commit(second, [2], [13])
    assert _leaves(story) == [2, 1]


def test_an_undelivered_leaf_is_left_out() -> None:
    story = Story(TREE)
    root = story.say([1], [11])
    story.say([2], [12], after=root, delivered=False)
    assert _leaves(story) == []
    assert _leaves(story, KEEP) == []
    assert story.collect().ledger.dropped == {"not_picked": 1, "undelivered": 1}


@pytest.mark.parametrize("options", [OPTIONS, KEEP], ids=["drop_retries", "keep_siblings"])
@pytest.mark.parametrize("after_root", [True, False], ids=["siblings", "roots"])
def test_of_two_equal_requests_the_first_stays_where_the_second_was_never_delivered(
    after_root: bool, options: CollectOptions
) -> None:
    story = Story(TREE)
    root = story.say([1], [11]) if after_root else None
    first = story.say([2], [12, 13], after=root, text="again")
    lost = story.say([2], [14], after=root, text="again", delivered=False)
    collection = story.collect(options)
    assert [sample.metadata["leaf"]["node_id"] for sample in collection.samples] == [first.id]
    assert collection.ledger.dropped == {"undelivered": 1}
    assert [(leaf.turn_id, leaf.cause) for leaf in collection.dropped_leaves] == [(lost.id, "undelivered")]


def test_a_superseded_root_without_children_is_left_out() -> None:
    story = Story(TREE)
    story.say([1], [11], text="hello")
    story.say([1], [12], text="hello")
    assert _leaves(story) == [1]


def test_a_superseded_root_with_children_is_kept() -> None:
    story = Story(TREE)
    root = story.say([1], [11], text="hello")
    story.say([2], [12], after=root)
    story.say([1], [13], text="hello")
    assert _leaves(story) == [1, 2]


def test_another_root_is_kept() -> None:
    story = Story(TREE)
    story.say([1], [11], text="a title, please")
    story.say([1], [12], text="hello")
    assert _leaves(story) == [1, 0]


def test_a_kept_leaf_that_is_rolled_back_says_so_and_how_many_were_kept() -> None:
    story = Story(TREE)
    root = story.say([1], [11])
    story.say([2], [12], after=root, text="again")
    story.say([2], [13], after=root, text="again")
    own = [sample.metadata["turnkeeper"] for sample in story.collect(KEEP).samples]
    assert [each["rollout_leaves"] for each in own] == [2, 2]
    assert [each.get("rolled_back") for each in own] == [None, {"cause": "superseded", "by": 2}]
    (kept,) = story.collect().samples
    assert kept.metadata["turnkeeper"]["rollout_leaves"] == 1


def _several_drops() -> Story:
    """Leaf 1 was rejected, 2 superseded, 3 lost, 4 kept, 5 too long for 9 tokens."""
    story = Story(TREE)
    root = story.say([1], [11])
    story.say([2], [12], after=root, text="a")
    story.say([2], [13], after=root, text="b")
    story.say([2], [14], after=root, text="b", delivered=False)
    story.say([2], [15], after=root, text="b")
    story.say(list(range(20, 30)), [16], text="another root")
    return story


def test_what_was_dropped_is_listed_by_cause() -> None:
    collection = _several_drops().collect(max_seq_len=9)
    assert collection.session_metadata["turnkeeper"]["dropped_leaves"] == [
        {"node_id": 1, "response_id": "chat-1", "cause": "input_changed", "by": 2},
        {"node_id": 2, "response_id": "chat-2", "cause": "superseded", "by": 4},
        {"node_id": 3, "response_id": "chat-3", "cause": "undelivered"},
        {"node_id": 5, "response_id": "chat-5", "cause": "over_max_seq_len"},
    ]
    assert collection.ledger.unaccounted == 0


def test_what_a_picker_of_the_users_drops_is_not_picked() -> None:
    story = Story(TREE)
    story.say([1], [11], text="one")
    story.say([1], [12], text="two")
    collection = story.collect(CollectOptions(hooks=load_hooks(picker="samples.hookbox.first_only")))
    assert [(leaf.turn_id, leaf.cause) for leaf in collection.dropped_leaves] == [(1, "not_picked")]


def test_a_linear_session_lists_what_was_retried() -> None:
    story = Story(LINEAR)
    first = story.say([1], [11])
    story.say([2], [12], after=first, text="again")
    story.say([2], [13], after=first, text="again")
    collection = story.collect()
    assert [(leaf.turn_id, leaf.cause) for leaf in collection.dropped_leaves] == [(1, "superseded")]
    assert collection.samples[0].metadata["turnkeeper"]["rollout_leaves"] == 1
