"""Logprobs computed again, with the stored rows forced through the model and without, over masks and without.

Three questions: does a path that met one version only replay from its sample alone; does every engine call replay
from its KV trace; and how far off is a path that an update crossed, which nothing can replay exactly, because each of
its positions would have to be computed under one version while the engine computed them under several.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.updates.rounds import TracedCall
from turnkeeper.demo.paths import read_versions
from turnkeeper.samples import Sample
from turnkeeper.tiny.checkpoint import read_weights
from turnkeeper.tiny.model import Chunk, TinyModel
from turnkeeper.tiny.scheduler.trace import normalize, replay

TOLERANCE = 1e-4
"""The largest difference of a logprob, in nats, that counts as reproduced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Differences between rollout logprobs and recomputed ones, over tokens."""

    paths: int = 0
    """Paths, or engine calls, that were compared."""
    tokens: int = 0
    total: float = 0.0
    """The sum of the absolute differences, in nats."""
    worst: float = 0.0

    @property
    def mean(self) -> float:
        """In nats a token."""
        return self.total / self.tokens if self.tokens else 0.0

    def __add__(self, other: "Gap") -> "Gap":
        """Join the gaps of two paths."""
        return Gap(
            paths=self.paths + other.paths,
            tokens=self.tokens + other.tokens,
            total=self.total + other.total,
            worst=max(self.worst, other.worst),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The differences of the same tokens, by what both sides normalise over."""

    full: Gap = Gap()
    """The whole vocabulary, on both sides."""
    masked: Gap = Gap()
    """What each token was drawn from, on both sides."""
    unmasked: Gap = Gap()
    """The whole vocabulary where the engine's logprob is within the mask: what a trainer has that gets no masks."""
    wide: int = 0
    """Tokens whose mask holds more than one id."""

    def __add__(self, other: "Gaps") -> "Gaps":
        """Join the gaps of two paths."""
        return Gaps(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


NO_GAPS = Gaps()
"""Nothing compared."""


class Weights:
    """The models behind version labels."""

    def __init__(self) -> None:
        """None read yet."""
        self._models: dict[str, TinyModel] = {}
        self._sources: dict[str, str] = {}

    def learn(self, calls: Sequence[TracedCall]) -> None:
        """Note which folder each label stands for."""
        for traced in calls:
            for stamp in traced.line["stamps"].values():
                self._sources[stamp["version"]] = stamp["source"]

    def get(self, version: str) -> TinyModel:
        """The model of a label that was learnt."""
        source = self._sources[version]
        if source not in self._models:
            checkpoint = read_weights(Path(source))
            self._models[source] = TinyModel(checkpoint.shape, checkpoint.weights)
        return self._models[source]


def list_path_versions(path: Sequence[TracedCall]) -> set[str]:
    """The labels under which any position of a path was computed, by its own calls or in a prefix that they reused."""
    return {stamp["version"] for traced in path for stamp in traced.line["stamps"].values()}


def replay_call(traced: TracedCall, weights: Weights) -> Gaps:
    """An engine call against its own trace."""
    line, call = traced.line, traced.call
    if not line["output_ids"]:
        return Gaps(full=Gap(paths=1))
    models = {int(stamp): weights.get(meant["version"]) for stamp, meant in line["stamps"].items()}
    found = replay(line, models)
    full = _compare(found.logprobs, call.logprobs)
    if call.masks is None or call.sampling_logprobs is None or found.sampling_logprobs is None:
        return Gaps(full=full)
    return Gaps(
        full=full,
        masked=_compare(found.sampling_logprobs, call.sampling_logprobs),
        unmasked=_compare(found.logprobs, call.sampling_logprobs),
        wide=_count_wide(call.masks),
    )


def replay_sample(sample: Sample, weights: Weights, *, uses_rows: bool) -> Gaps:
    """A sample against the weights that sampled it, from what a trainer gets alone.

    Each trained token is computed under its own version, over the whole path before it under the same version.

    Args:
        sample: with routing rows, sampling masks and temperatures.
        weights: knows its versions.
        uses_rows: whether the sample's rows are forced; else the model routes as it likes.
    """
    first = len(sample.tokens) - sample.response_length
    trained = np.flatnonzero(sample.loss_mask == 1).tolist()
    ids, offsets = sample.rollout_sampling_mask_ids, sample.rollout_sampling_mask_offsets
    full, temperatures = sample.rollout_full_log_probs, sample.rollout_temperatures
    if not trained or ids is None or offsets is None or full is None or temperatures is None:
        return Gaps(full=Gap(paths=1))
    versions = read_versions(sample)
    scored = {
        version: _score(sample, weights.get(version), uses_rows=uses_rows)[first - 1 :]
        for version in {versions[at] for at in trained}
    }
    logits = np.stack([scored[versions[at]][at] / temperatures[at] for at in trained])
    sampled = sample.tokens[first:][trained].astype(np.int32)
    masks = [ids[offsets[at] : offsets[at + 1]].tolist() for at in trained]
    found, told = normalize(logits, sampled), sample.rollout_log_probs[trained]
    return Gaps(
        full=_compare(found, full[trained]),
        masked=_compare(normalize(logits, sampled, masks), told),
        unmasked=_compare(found, told),
        wide=_count_wide(masks),
    )


def _score(sample: Sample, model: TinyModel, *, uses_rows: bool) -> NDArray[np.float64]:
    """Shape [T-1, vocabulary]: the logits behind each token but the first."""
    ids = sample.tokens.astype(np.int32)
    rows = sample.rollout_routed_experts
    forced = rows.astype(np.int32) if uses_rows and rows is not None else None
    chunk = Chunk(ids=ids[:-1], kv=model.new_kv(len(ids) - 1), experts=forced)
    return model.forward([chunk], every_position=True).logits.astype(np.float64)


def _count_wide(masks: Sequence[Sequence[int]]) -> int:
    return sum(len(mask) > 1 for mask in masks)


def _compare(found: NDArray[np.float64], told: NDArray[np.float64]) -> Gap:
    differences = np.nan_to_num(np.abs(found - told), nan=np.inf)  # what nobody told is off without end
    return Gap(
        paths=1, tokens=len(differences), total=float(differences.sum()), worst=float(differences.max(initial=0.0))
    )
