"""The metadata of samples and sessions: where each turn lies, when it ran, under which weights, what is masked.

Positions are places in the response (0 is the first token behind the first prompt), half-open. Everything that the
reference trainer does not know stands under ``turnkeeper``.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.core import Cause, Turn
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, is_number
from turnkeeper.samples.assemble import MASK_REASONS, AssembledPath
from turnkeeper.samples.rollback import Rollback
from turnkeeper.samples.sample import Reward
from turnkeeper.samples.view import SessionView, Stretch


def describe_lifecycle(kept: Sequence[Stretch]) -> JsonObject | list[JsonObject]:
    """Describe when each kept turn ran, in Unix seconds: an object for one turn, a list for several."""
    segments: list[JsonObject] = []
    for at, stretch in enumerate(kept):
        turn = stretch.turn
        latency = turn.completion.meta.get("e2e_latency")
        segment: JsonObject = {
            "t0": turn.committed_at - latency if is_number(latency) else None,
            "t1": turn.committed_at,
            "turn": at + 1,
            "req_ts": turn.begun_at,
        }
        if at:
            segment["prev_t1"] = kept[at - 1].turn.committed_at
        segments.append(segment)
    return segments if len(segments) > 1 else segments[0]


def describe_leaf(path: Sequence[Turn]) -> JsonObject:
    """Describe a leaf by the key with which hooks and agents tell leaves apart."""
    leaf = path[-1]
    return {
        "node_id": leaf.id,
        "parent": leaf.parent,
        "path_node_ids": [turn.id for turn in path],
        "response_id": leaf.completion.response_id,
    }


def describe_own(
    assembled: AssembledPath, view: SessionView, *, rollback: Rollback | None, rewards: Mapping[str, Reward]
) -> JsonObject:
    """Build the object under ``turnkeeper`` in a sample's metadata, without ``masked`` and the parts of the session."""
    turns = _describe_turns(assembled, view, rewards)
    own: JsonObject = {"turns": turns, "versions": _describe_versions(assembled)}
    leaf, cut = assembled.stretches[-1].turn.id, assembled.cut
    own["label"] = str(view.labels[leaf])
    own["delivered"] = leaf not in view.undelivered
    if rollback is not None:
        own["rolled_back"] = rollback.to_json()
    if cut.reason is not None:
        own["cut"] = {"reason": str(cut.reason), "turns": cut.turns, "tokens": cut.tokens}
    if cut.past_truncation:
        own["past_truncation"] = True
    if view.is_evaluation:
        own["evaluation"] = True
    return own


def describe_masked(reasons_R: NDArray[np.uint8]) -> list[JsonObject]:
    """List runs of sampled tokens that carry no loss, each with its reason."""
    edges: list[int] = (np.flatnonzero(np.diff(reasons_R)) + 1).tolist()
    runs = pairwise([0, *edges, len(reasons_R)])
    return [
        {"reason": str(MASK_REASONS[int(reasons_R[start]) - 1]), "start": start, "end": stop}
        for start, stop in runs
        if start < stop and reasons_R[start]
    ]


def describe_tree(view: SessionView) -> JsonObject:
    """Describe a session's turns and leaves in two tables; the number of a turn is its place in the commit order."""
    nodes = [
        {
            "id": turn.id,
            "parent": turn.parent,
            "seq": turn.id,
            "truncated": turn.completion.is_truncated,
            "committed_at": turn.committed_at,
            "completion_span": [turn.completion_span.start, turn.completion_span.stop],
            "num_tokens": turn.path_tokens,
            "response_id": turn.completion.response_id,
        }
        for turn in view.turns
    ]
    leaves = [{"node_id": leaf, "path_node_ids": [turn.id for turn in view.trace(leaf)]} for leaf in view.leaves]
    return {"nodes": nodes, "leaves": leaves}


def describe_turn(view: SessionView, turn_id: TurnId) -> JsonObject:
    """Describe a turn besides its tokens: place, sampler, marks. From ``why`` on, keys without a value are left out."""
    turn = view.turns[turn_id]
    described: JsonObject = {
        "id": turn.id,
        "parent": turn.parent,
        "response_id": turn.completion.response_id,
        "label": str(view.labels[turn_id]),
        "finish_reason": str(turn.completion.finish_reason),
        "prompt_tokens": turn.completion_span.start,
        "added_tokens": len(turn.prompt.ids),
        "completion_tokens": len(turn.completion.ids),
        "cached_tokens": turn.completion.cached_tokens,
        "sampling": dict(turn.request.sampling),
    }
    if turn.why.cause is not Cause.NONE:
        described["why"] = turn.why.to_json()
    if turn_id in view.noncanonical:
        described["noncanonical_from"] = view.noncanonical[turn_id]
    said: JsonObject = {
        "marks": dict(turn.completion.marks),
        "accepted": [difference.to_json() for difference in turn.accepted],
        "rewritten": list(view.rewritten.get(turn_id, ())),
        "carried": turn.carried,
        "context_changed": turn.context_changed,
        "sampled_call_ids": dict(turn.completion.sampled_ids),
        "agent": turn.agent,
        "model": turn.request.model,
        "notes": list(turn.request.notes),
        "headers": dict(turn.request.headers),
        "lora_name": turn.completion.lora_name,
    }
    return described | {key: value for key, value in said.items() if value}


def _describe_turns(assembled: AssembledPath, view: SessionView, rewards: Mapping[str, Reward]) -> list[JsonObject]:
    turns: list[JsonObject] = []
    for at, stretch in enumerate(assembled.stretches[: assembled.cut.turns]):
        place, response_id = assembled.find_kept(at), stretch.turn.completion.response_id
        text = assembled.texts[at]
        described = {
            "start": place.start,
            "end": place.stop,
            "text": [text.start, text.stop],
            **describe_turn(view, stretch.turn.id),
        }
        turns.append(described | ({"reward": rewards[response_id]} if response_id in rewards else {}))
    return turns


def _describe_versions(assembled: AssembledPath) -> list[JsonObject]:
    """List the weight versions of the sampled tokens by span; neighbouring spans of one version and turn are joined."""
    versions: list[JsonObject] = []
    for at, stretch in enumerate(assembled.stretches[: assembled.cut.turns]):
        place = assembled.find_kept(at)
        for span in stretch.turn.completion.versions:
            start, stop = place.start + span.start, min(place.start + span.stop, place.stop)
            if start >= stop:
                continue
            last: dict[str, Any] = versions[-1] if versions else {}
            if last.get("end") == start and last.get("version") == span.version and start > place.start:
                last["end"] = stop
            else:
                adapter = stretch.turn.completion.lora_name
                named: JsonObject = {} if adapter is None else {"lora_name": adapter}
                versions.append({"version": span.version, "start": start, "end": stop, **named})
    return versions
