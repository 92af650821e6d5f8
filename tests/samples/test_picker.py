"""The built-in pickers.

1. Where nothing is parallel, undelivered or a superseded root, the default picker keeps and orders exactly what the
   reference trainer's rule does.
2. Parallel leaves are kept; undelivered ones and superseded roots without children are left out.
3. `keep_siblings` leaves out only what the agent never saw.
"""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from samples.builders import TREE, Story
from turnkeeper.samples import CollectOptions, load_hooks
from turnkeeper.samples.picker import drop_retries, keep_siblings

KEEP = CollectOptions(hooks=load_hooks(picker="keep_siblings"))


@st.composite
def _forests(draw: st.DrawFn) -> list[int | None]:
    """The parent of each node, in commit order."""
    size = draw(st.integers(1, 9))
    return [draw(st.none() | st.integers(0, node - 1)) if node else None for node in range(size)]


def _path(parents: list[int | None], node: int | None) -> list[int]:
    return [] if node is None else [*_path(parents, parents[node]), node]


def _leaf_samples(parents: list[int | None]) -> list[Any]:
    leaves = [node for node in range(len(parents)) if node not in parents]
    return [
        SimpleNamespace(
            metadata={
                "leaf": {"node_id": leaf, "parent": parents[leaf], "path_node_ids": _path(parents, leaf)},
                "turnkeeper": {"label": "extension", "delivered": True},
            }
        )
        for leaf in leaves
    ]


@settings(max_examples=150, deadline=None)
@given(_forests())
def test_the_default_picker_starts_from_the_reference_rule(parents: list[int | None]) -> None:
    tree = {"nodes": [{"id": node, "parent": parent} for node, parent in enumerate(parents)]}
    leaves = [node for node in range(len(parents)) if node not in parents]
    kept = [
        leaf
        for leaf in leaves
        if parents[leaf] is None or not any(parents[other] == parents[leaf] for other in range(leaf + 1, len(parents)))
    ]
    expected = sorted(kept, key=lambda leaf: (len(_path(parents, leaf)), leaf), reverse=True)
    picked = drop_retries(_leaf_samples(parents), {"tree": tree})
    assert [sample.metadata["leaf"]["node_id"] for sample in picked] == expected


@settings(max_examples=50, deadline=None)
@given(_forests())
def test_keeping_siblings_keeps_every_leaf(parents: list[int | None]) -> None:
    samples = _leaf_samples(parents)
    assert {id(sample) for sample in keep_siblings(samples, {})} == {id(sample) for sample in samples}


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
