"""Hooks as users write them, for tests that load hooks by import path."""

import copy
from typing import Any

not_a_function = 3


def first_only(leaf_samples: list[Any], session_metadata: dict[str, Any]) -> list[Any]:
    return leaf_samples[:1]


def keep_all(leaf_samples: list[Any], session_metadata: dict[str, Any]) -> list[Any]:
    return leaf_samples


def score_copies(leaf_samples: list[Any], session_metadata: dict[str, Any]) -> list[Any]:
    """Written for the reference's samples: new objects, fields by their names there."""
    finished = []
    for sample in leaf_samples:
        scored = copy.deepcopy(sample)
        scored.reward = {"score": float(len(scored.tokens)), "agent": session_metadata["agent"]["name"]}
        scored.metadata = {**scored.metadata, "leaf": "mine", "note": scored.response_length}
        scored.metadata["leaf"] = sample.metadata["leaf"]
        scored.loss_mask[0] = 0
        finished.append(scored)
    return finished


async def awaited(leaf_samples: list[Any], session_metadata: dict[str, Any]) -> list[Any]:
    return leaf_samples
