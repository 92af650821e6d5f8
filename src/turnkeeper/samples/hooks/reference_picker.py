"""The pickers of the reference trainer (radixark/miles), rule for rule, under its names.

They know siblings and their order and nothing else: not whether a reply was delivered, ran in parallel or belongs to
another agent. The session's own picker, which does, stands in ``picker``.

======================== =========================================== ==============================================
name                     a leaf under a parent is left out where      a root leaf is left out where
======================== =========================================== ==============================================
drop_retries             a later turn has the same parent             never
drop_rolled_back_leaves  a later turn has the same parent             a later root has the same prompt ids
drop_retries_same_prompt a later turn with its parent has its prompt  a later root has the same prompt ids
======================== =========================================== ==============================================
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.hooks.picker import Leaf, order_leaves


def drop_retries(leaf_samples: Sequence[Leaf], session_metadata: JsonObject) -> list[Leaf]:
    """Leave out each leaf under a parent that has a later child; every root is kept."""
    return _drop(leaf_samples, session_metadata, roots_match=False, siblings_match=False)


def drop_rolled_back_leaves(leaf_samples: Sequence[Leaf], session_metadata: JsonObject) -> list[Leaf]:
    """Leave out what ``drop_retries`` does, and each root leaf whose prompt ids a later root has too."""
    return _drop(leaf_samples, session_metadata, roots_match=True, siblings_match=False)


def drop_retries_same_prompt(leaf_samples: Sequence[Leaf], session_metadata: JsonObject) -> list[Leaf]:
    """Leave out each leaf of which a later sibling has the same prompt ids; roots are siblings of each other."""
    return _drop(leaf_samples, session_metadata, roots_match=True, siblings_match=True)


def _drop(
    leaf_samples: Sequence[Leaf], session_metadata: JsonObject, *, roots_match: bool, siblings_match: bool
) -> list[Leaf]:
    """Leave out each leaf of whose group a later turn stands in the tree.

    A group is a parent's children; where prompts are to match, those of them that have the same prompt ids. A turn of
    which no sample is left, since it exceeds the length limit, has the prompt of no other turn.
    """
    prompts = _read_prompts(leaf_samples, session_metadata)

    def find_group(node_id: int, parent: int | None) -> Hashable:
        if parent is None and not roots_match:
            return node_id
        return parent, prompts.get(node_id, node_id) if parent is None or siblings_match else None

    latest = {find_group(node["id"], node["parent"]): node["id"] for node in session_metadata["tree"]["nodes"]}
    leaves = ((sample, sample.metadata["leaf"]) for sample in leaf_samples)
    return order_leaves(
        [sample for sample, leaf in leaves if latest[find_group(leaf["node_id"], leaf["parent"])] == leaf["node_id"]]
    )


def _read_prompts(leaf_samples: Sequence[Leaf], session_metadata: JsonObject) -> dict[int, tuple[int, ...]]:
    """Read the prompt ids of those turns on the leaves' paths that have a sibling with a prompt of equal length."""
    nodes = {node["id"]: (node["parent"], node["completion_span"][0]) for node in session_metadata["tree"]["nodes"]}
    places = Counter(nodes.values())
    prompts: dict[int, tuple[int, ...]] = {}
    for sample in leaf_samples:
        ids = sample.metadata["accumulated_token_ids"]
        for node_id in sample.metadata["leaf"]["path_node_ids"]:
            if places[nodes[node_id]] > 1 and node_id not in prompts:
                prompts[node_id] = tuple(ids[: nodes[node_id][1]])
    return prompts
