"""The built-in postprocessor: what becomes of the leaves that were picked.

A postprocessor is ``fn(leaf_samples, session_metadata) -> list``: it may mask tokens, set rewards and statuses, and
add metadata. Tokens, log probabilities and rows are not its to change.
"""

from collections.abc import Sequence

from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.draft import DraftSample

OWNED_KEYS = ("accumulated_token_ids", "tito_session_mismatch", "leaf", "turnkeeper")
"""Metadata that only the server writes."""


def default_postprocess(leaf_samples: Sequence[DraftSample], session_metadata: JsonObject) -> list[DraftSample]:
    """Train a shared completion once, give every sample the request's reward and metadata.

    A token trains in the earliest committed leaf that was picked and contains it. (A stop token that one path trims
    and another keeps trains in the one that keeps it.) The metadata of the collect request comes into every sample;
    where it and the server name the same key, the server's value stays.
    """
    agent: JsonObject = session_metadata.get("agent") or {}
    claimed: dict[int, int] = {}
    for sample in sorted(leaf_samples, key=lambda sample: sample.metadata["leaf"]["node_id"]):
        mask = sample.loss_mask or []
        for turn in sample.metadata["turnkeeper"]["turns"]:
            start, length = turn["start"], turn["end"] - turn["start"]
            shared = min(claimed.get(turn["id"], 0), length)
            mask[start : start + shared] = [0] * shared
            claimed[turn["id"]] = max(claimed.get(turn["id"], 0), length)
        given = {key: value for key, value in agent.items() if key not in OWNED_KEYS}
        sample.metadata = {**given, **sample.metadata}
        if agent.get("reward") is not None:
            sample.reward = agent["reward"]
    return list(leaf_samples)
