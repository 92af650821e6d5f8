"""The built-in postprocessors: what becomes of the leaves that were picked.

A postprocessor is ``fn(leaf_samples, session_metadata) -> list``: it may mask tokens, set rewards and statuses, and
add metadata. Tokens, log probabilities and rows are not its to change.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from turnkeeper.jsontypes import JsonObject, is_array
from turnkeeper.samples.hooks.draft import ArrayDraft, DraftSample
from turnkeeper.samples.sample import OWN_KEY, OWNED_KEYS, Reward

Draft = TypeVar("Draft", DraftSample, ArrayDraft)
"""Either kind of draft: a hook of the user may call a built-in postprocessor."""


def default_postprocess(leaf_samples: Sequence[Draft], session_metadata: JsonObject) -> list[Draft]:
    """Train a shared completion once, give every sample the request's reward and metadata.

    A token trains in the earliest committed leaf that was picked and contains it. (A stop token that one path trims
    and another keeps trains in the one that keeps it.) A leaf that was given a reward of its own keeps it. The
    metadata of the collect request comes into every sample; where it and the server name the same key, the server's
    value stays.
    """
    given = _read_given(session_metadata)
    for sample in leaf_samples:
        sample.metadata = {**given, **sample.metadata}
    return _finish(leaf_samples, session_metadata)


def reference_postprocess(leaf_samples: Sequence[Draft], session_metadata: JsonObject) -> list[Draft]:
    """Train as ``default_postprocess`` does, but let the request's metadata win over the server's for a common key,
    unless the key is one of ``OWNED_KEYS``. This is the rule of the reference trainer's postprocessor."""
    given = _read_given(session_metadata)
    for sample in leaf_samples:
        sample.metadata = {**sample.metadata, **given}
    return _finish(leaf_samples, session_metadata)


def non_positive_attempts(leaf_samples: Sequence[Draft], session_metadata: JsonObject) -> list[Draft]:
    """Train as ``reference_postprocess`` does, and name the turns that must not get a positive advantage.

    The request names those turns in ``metadata.non_positive_advantage_response_ids``, a list that may be empty. Every
    sample says in ``non_positive_advantage_spans`` where their completions lie in its response, half-open. Masks and
    rewards stay as they are.

    Raises:
        ValueError: the list is missing or holds no ids, or an id belongs to no turn or to several.
    """
    named: object = _read_agent(session_metadata).get("non_positive_advantage_response_ids")
    if not is_array(named) or not all(isinstance(each, str) and each for each in named):
        raise ValueError("metadata.non_positive_advantage_response_ids must be a list of response ids")
    nodes = [node for node in session_metadata["tree"]["nodes"] if node["response_id"] in named]
    counts = Counter(node["response_id"] for node in nodes)
    for response_id in named:
        if counts[response_id] != 1:
            raise ValueError(
                f"non_positive_advantage_response_ids: {counts[response_id]} turns have the response id {response_id!r}"
            )
    finished = reference_postprocess(leaf_samples, session_metadata)
    for sample in finished:
        start, size = len(sample.tokens) - sample.response_length, sample.response_length
        path = set(sample.metadata["leaf"]["path_node_ids"])
        spans = [node["completion_span"] for node in nodes if node["id"] in path]
        inside = [[min(max(at - start, 0), size) for at in span] for span in spans]
        sample.metadata["non_positive_advantage_spans"] = [span for span in inside if span[0] < span[1]]
    return finished


def _read_given(session_metadata: JsonObject) -> JsonObject:
    """Return the request's metadata, but for the keys that only the server writes."""
    return {key: value for key, value in _read_agent(session_metadata).items() if key not in OWNED_KEYS}


def _read_agent(session_metadata: JsonObject) -> JsonObject:
    return session_metadata.get("agent") or {}


def _finish(leaf_samples: Sequence[Draft], session_metadata: JsonObject) -> list[Draft]:
    """Mask what trains in an earlier leaf; give the request's reward to samples without one."""
    reward: Reward | None = _read_agent(session_metadata).get("reward")
    claimed: dict[int, int] = {}
    for sample in sorted(leaf_samples, key=lambda sample: sample.metadata["leaf"]["node_id"]):
        mask = sample.loss_mask
        for turn in sample.metadata[OWN_KEY]["turns"]:
            start, length = turn["start"], turn["end"] - turn["start"]
            shared = min(claimed.get(turn["id"], 0), length)
            if shared and mask is not None:
                mask[start : start + shared] = bytearray(shared)
            claimed[turn["id"]] = max(claimed.get(turn["id"], 0), length)
        if sample.reward is None:
            sample.reward = reward
    return list(leaf_samples)
