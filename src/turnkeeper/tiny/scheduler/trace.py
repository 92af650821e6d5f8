"""The KV trace: one JSON line for each finished request, for programs that check what the engine says of itself.

Fields of a line::

    rid, prompt_ids, output_ids
    routing_key       the request's header ``X-SMG-Routing-Key``: a session server's session id; "" without one
    logprobs          of the output, at ``temperature``
    temperature       of the distribution they are of: 1 for a greedy request
    sampling_masks    of the output, the ids that each token was drawn from; null where the sampler leaves nothing out
    sampling_logprobs of the output within its masks; null without them
    is_plain          whether nothing but the temperature shaped the logprobs (no penalty, bias, banned stop)
    finish_reason     stop, length or abort
    cached_tokens     prompt positions that came from the prefix cache; null for a request that ended waiting
    num_retractions
    weight_versions   [{version, start, end}]: output tokens by the version that sampled them
    stamps            {stamp: {version, source}}: the weights the epochs speak of, and the folder they are from
    epochs            [{start, end, kv_stamps, kv_experts}]

An epoch is a run of output tokens ``[start, end)`` that were sampled over one KV buffer. ``kv_stamps`` and
``kv_experts`` hold, for each position of the prompt and of the output before ``end`` (one less than their sum),
which weights computed that position and which experts they chose ([positions][layers][top-k]). Within an epoch a
position is computed once and used as it was computed, so an epoch replays exactly: see `replay`. A retraction
begins a new epoch, with all positions computed again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from turnkeeper.errors import ConfigError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.tiny.model import Chunk, TinyModel
from turnkeeper.tiny.scheduler.live import LiveRequest
from turnkeeper.tiny.scheduler.request import Result
from turnkeeper.tiny.scheduler.scheduler import WeightStamp


class KvTrace:
    """Writes the lines; the scheduler's thread calls it."""

    def __init__(self, path: Path) -> None:
        """Begin an empty file.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the KV trace {path}: {error.strerror}") from error

    def __call__(self, live: LiveRequest, result: Result, stamps: Sequence[WeightStamp]) -> None:
        """Write a finished request."""
        self._file.write(json.dumps(build_line(live, result, stamps), separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def build_line(live: LiveRequest, result: Result, stamps: Sequence[WeightStamp]) -> JsonObject:
    """Build the line of a finished request; `stamps` says what each stamp stands for."""
    params = live.request.params
    seen = sorted({int(stamp) for epoch in live.epochs for stamp in epoch.stamps})
    return {
        "rid": result.rid,
        "routing_key": live.request.routing_key,
        "prompt_ids": live.request.prompt_ids.tolist(),
        "output_ids": result.tokens.ids,
        "logprobs": result.tokens.logprobs,
        "temperature": params.reported_temperature,
        "sampling_masks": [mask.ids for mask in result.tokens.masks] if live.sampler.keeps_masks else None,
        "sampling_logprobs": [mask.logprob for mask in result.tokens.masks] if live.sampler.keeps_masks else None,
        "is_plain": not (params.has_penalties or params.logit_bias or params.min_new_tokens),
        "finish_reason": result.finish.kind,
        "cached_tokens": result.cached_tokens,
        "num_retractions": result.num_retractions,
        "weight_versions": [{"version": s.version, "start": s.start, "end": s.end} for s in result.spans],
        "stamps": {stamp: {"version": stamps[stamp].version, "source": stamps[stamp].source} for stamp in seen},
        "epochs": [
            {
                "start": epoch.start,
                "end": epoch.end,
                "kv_stamps": epoch.stamps.tolist(),
                "kv_experts": epoch.experts.tolist(),
            }
            for epoch in live.epochs
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """The logprobs of a traced request, computed again."""

    logprobs: NDArray[np.float64]
    """[output]: what ``logprobs`` should be."""

    sampling_logprobs: NDArray[np.float64] | None
    """[output]: what ``sampling_logprobs`` should be; None without masks."""


def replay(line: JsonObject, models: Mapping[int, TinyModel]) -> Replayed:
    """Compute the logprobs of a traced request again, with its recorded experts forced and its masks applied.

    Args:
        line: a parsed line of the trace whose ``is_plain`` is true.
        models: the weights of each of its stamps.
    """
    ids = np.array([*line["prompt_ids"], *line["output_ids"]], np.int32)
    masks: list[list[int]] | None = line["sampling_masks"]
    found: list[float] = []
    found_in_masks: list[float] = []
    for epoch in line["epochs"]:
        experts = np.array(epoch["kv_experts"], np.int32)
        logits = _forward_in_stretches(ids, experts, epoch["kv_stamps"], models)
        first = len(line["prompt_ids"]) + epoch["start"]
        last = len(line["prompt_ids"]) + epoch["end"]
        scaled = logits[first - 1 : last - 1].astype(np.float64) / line["temperature"]
        sampled = ids[first:last]
        found += normalize(scaled, sampled).tolist()
        if masks is not None:
            found_in_masks += normalize(scaled, sampled, masks[epoch["start"] : epoch["end"]]).tolist()
    return Replayed(logprobs=np.array(found), sampling_logprobs=np.array(found_in_masks) if masks is not None else None)


def normalize(
    logits: NDArray[np.float64], sampled: NDArray[np.int32], masks: Sequence[Sequence[int]] | None = None
) -> NDArray[np.float64]:
    """Compute the logprob of each sampled token, within its mask where there are masks.

    Args:
        logits: [tokens, vocabulary], at the temperature they were sampled at.
        sampled: [tokens].
        masks: for each token the ids that it was drawn from; one without any is over the whole vocabulary.
    """
    found = np.empty(len(sampled))
    for index, token in enumerate(sampled):
        row = logits[index]
        kept = row[list(masks[index])] if masks is not None and len(masks[index]) else row
        top = kept.max()
        found[index] = row[token] - top - np.log(np.exp(kept - top).sum())
    return found


def _forward_in_stretches(
    ids: NDArray[np.int32], experts: NDArray[np.int32], stamps: Sequence[int], models: Mapping[int, TinyModel]
) -> NDArray[np.float32]:
    """Logits of every position, each stretch of positions under the weights that computed it."""
    kv = models[stamps[0]].new_kv(len(stamps))
    logits: list[NDArray[np.float32]] = []
    for stamp, stretch in groupby(stamps):
        start, end = kv.length, kv.length + len(list(stretch))
        chunk = Chunk(ids=ids[start:end], kv=kv, experts=experts[start:end])
        logits.append(models[stamp].forward([chunk], every_position=True).logits)
    return np.concatenate(logits)
