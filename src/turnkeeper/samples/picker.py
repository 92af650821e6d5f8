"""The built-in pickers: which leaves of a tree become samples.

A picker is ``fn(leaf_samples, session_metadata) -> list``: it selects and orders, and changes nothing. Leaves are
known by ``sample.metadata["leaf"]``, their labels by ``sample.metadata["turnkeeper"]``, and all turns by the tables
of ``session_metadata["tree"]``.
"""

from collections.abc import Sequence

from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.draft import DraftSample


def drop_retries(leaf_samples: Sequence[DraftSample], session_metadata: JsonObject) -> list[DraftSample]:
    """Leave out the leaves that retries left behind; longest path first, then latest leaf first.

    ::

        0  turn 1
        |- 1  turn 2, cut off           left out: 2 came later under the same parent
        |- 2  turn 2 again
        |  `- 3  turn 3                 kept
        5  turn 1, asked twice at once  kept: parallel
        6  a title request              kept: another root

    Left out is a leaf with a later sibling, unless the two were asked in parallel; a leaf whose reply never reached
    the agent; and a root leaf that a later root with equal messages superseded. A turn with children is no leaf, so
    a root that was continued never is.
    """
    parents: dict[int, int | None] = {node["id"]: node["parent"] for node in session_metadata["tree"]["nodes"]}
    latest: dict[int, int] = {}
    for node, parent in parents.items():
        if parent is not None:
            latest[parent] = max(node, latest.get(parent, node))
    kept: list[DraftSample] = []
    for sample in leaf_samples:
        leaf, own = sample.metadata["leaf"], sample.metadata["turnkeeper"]
        label = own["label"]
        if leaf["parent"] is None:
            is_retried = label == "superseded"
        else:
            is_retried = latest[leaf["parent"]] > leaf["node_id"] and label != "parallel"
        if _is_delivered(sample) and not is_retried:
            kept.append(sample)
    return sorted(kept, key=_rank, reverse=True)


def keep_siblings(leaf_samples: Sequence[DraftSample], session_metadata: JsonObject) -> list[DraftSample]:
    """Keep every leaf whose reply reached the agent, retries too; longest path first, then latest leaf first."""
    return sorted(filter(_is_delivered, leaf_samples), key=_rank, reverse=True)


def _is_delivered(sample: DraftSample) -> bool:
    return sample.metadata["turnkeeper"]["delivered"]


def _rank(sample: DraftSample) -> tuple[int, int]:
    leaf = sample.metadata["leaf"]
    return len(leaf["path_node_ids"]), leaf["node_id"]
