"""The pickers of the reference trainer, rule for rule.

1. Over random forests: what its rules say, told in words of their own, from the tables that its hooks get.
2. Delivery, parallel calls and agents make no difference to them.
3. A turn of which no sample is left has the prompt of no other turn.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.builders import TREE, Story
from turnkeeper.samples import CollectOptions, load_hooks
from turnkeeper.samples.hooks.reference_picker import drop_retries, drop_retries_same_prompt, drop_rolled_back_leaves

Nodes = list[tuple[int | None, int]]
"""The parent and the one appended prompt id of each node, in commit order; its completion is one id of its own."""


@st.composite
def _forests(draw: st.DrawFn) -> Nodes:
    size = draw(st.integers(1, 9))
    parents = [draw(st.none() | st.integers(0, node - 1)) if node else None for node in range(size)]
    return [(parent, draw(st.integers(1, 2))) for parent in parents]


def _path(nodes: Nodes, node: int | None) -> list[int]:
    return [] if node is None else [*_path(nodes, nodes[node][0]), node]


def _ids(nodes: Nodes, node: int) -> list[int]:
    return [token for each in _path(nodes, node) for token in (nodes[each][1], 100 + each)]


def _tables(nodes: Nodes, left_out: set[int]) -> tuple[list[Any], dict[str, Any]]:
    """Leaf samples and session metadata as hooks get them."""
    leaves = [node for node in range(len(nodes)) if all(parent != node for parent, _ in nodes)]
    samples = [
        SimpleNamespace(
            metadata={
                "leaf": {"node_id": leaf, "parent": nodes[leaf][0], "path_node_ids": _path(nodes, leaf)},
                "accumulated_token_ids": _ids(nodes, leaf),
            }
        )
        for leaf in leaves
        if leaf not in left_out
    ]
    spans = [len(_ids(nodes, node)) for node in range(len(nodes))]
    rows = [
        {"id": node, "parent": parent, "completion_span": [spans[node] - 1, spans[node]]}
        for node, (parent, _) in enumerate(nodes)
    ]
    return samples, {"tree": {"nodes": rows}}


RULES: tuple[tuple[Callable[..., Any], Callable[[bool, bool], bool]], ...] = (
    (drop_retries, lambda is_root, has_same_prompt: not is_root),
    (drop_rolled_back_leaves, lambda is_root, has_same_prompt: has_same_prompt or not is_root),
    (drop_retries_same_prompt, lambda is_root, has_same_prompt: has_same_prompt),
)
"""A picker, and whether a later sibling replaces a leaf."""


@pytest.mark.parametrize(("picker", "replaces"), RULES, ids=lambda each: each.__name__)
@settings(max_examples=120, deadline=None)
@given(nodes=_forests(), left_out=st.sets(st.integers(0, 8), max_size=2))
def test_a_picker_keeps_what_the_rule_says(
    picker: Callable[..., Any], replaces: Callable[[bool, bool], bool], nodes: Nodes, left_out: set[int]
) -> None:
    samples, metadata = _tables(nodes, left_out)
    covered = {node for sample in samples for node in sample.metadata["leaf"]["path_node_ids"]}

    def is_replaced(leaf: int) -> bool:
        parent = nodes[leaf][0]
        return any(
            replaces(parent is None, later in covered and _ids(nodes, later)[:-1] == _ids(nodes, leaf)[:-1])
            for later in range(leaf + 1, len(nodes))
            if nodes[later][0] == parent
        )

    kept = [sample.metadata["leaf"]["node_id"] for sample in samples]
    kept = [leaf for leaf in kept if not is_replaced(leaf)]
    expected = sorted(kept, key=lambda leaf: (len(_path(nodes, leaf)), leaf), reverse=True)
    assert [sample.metadata["leaf"]["node_id"] for sample in picker(samples, metadata)] == expected


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("drop_retries", [4, 1]),
        ("miles.rollout.session.v2.picker_hub.drop_retries", [5, 1, 0]),
        ("drop_rolled_back_leaves", [5, 1]),
        ("drop_retries_same_prompt", [5, 3, 1]),
    ],
)
def test_delivery_and_parallel_calls_matter_to_our_own_picker_alone(name: str, kept: list[int]) -> None:
    story = Story(TREE)
    story.say([1], [11], text="hello")
    story.say([1], [12], text="hello")
    root = story.say([2], [13], text="another")
    story.say([3], [14], after=root, text="a")
    first, second = story.begin(root, "twice at once"), story.begin(root, "twice at once")
    story.commit(first, [4], [15])
    story.commit(second, [4], [16], delivered=False)
    samples = story.collect(CollectOptions(hooks=load_hooks(picker=name))).samples
    assert [sample.metadata["leaf"]["node_id"] for sample in samples] == kept
