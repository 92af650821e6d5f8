"""The built-in pickers: which leaves of a tree become samples.

A picker is ``fn(leaf_samples, session_metadata) -> list``: it selects and orders, and changes nothing. Leaves are
known by ``sample.metadata["leaf"]``, what turnkeeper knows of them by ``sample.metadata["turnkeeper"]``, and all turns
by the tables of ``session_metadata["tree"]``. The pickers of the reference trainer stand in ``reference_picker``.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.sample import OWN_KEY


class Described(Protocol):
    """A leaf's sample, of which a picker reads the metadata: an assembled one, or a draft for hooks."""

    @property
    def metadata(self) -> JsonObject:
        """The facts about the leaf that a picker may use."""
        ...


Leaf = TypeVar("Leaf", bound=Described)


def drop_retries(leaf_samples: Sequence[Leaf], session_metadata: JsonObject) -> list[Leaf]:
    """Leave out the leaves that are marked ``rolled_back``; longest path first, then latest leaf first.

    ::

        0  turn 1
        |- 1  turn 2, a format error    left out: 2 came in its place
        |- 2  turn 2 again
        |  `- 3  turn 3                 kept
        5  turn 1, asked twice at once  kept: parallel
        6  a title request              kept: another root

    What marks a leaf is said in ``samples.rollback``.
    """
    return order_leaves([sample for sample in leaf_samples if "rolled_back" not in sample.metadata[OWN_KEY]])


def keep_siblings(leaf_samples: Sequence[Leaf], session_metadata: JsonObject) -> list[Leaf]:
    """Keep every leaf whose reply reached the agent, rolled back or not; longest path first, then latest leaf first."""
    return order_leaves([sample for sample in leaf_samples if sample.metadata[OWN_KEY]["delivered"]])


def order_leaves(leaf_samples: Sequence[Leaf]) -> list[Leaf]:
    """Order leaves by the length of their paths in turns, the longest first; of equals the leaf that was committed last
    comes first."""
    return sorted(leaf_samples, key=_rank, reverse=True)


def _rank(sample: Described) -> tuple[int, int]:
    leaf = sample.metadata["leaf"]
    return len(leaf["path_node_ids"]), leaf["node_id"]
