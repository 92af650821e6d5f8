"""Logprobs computed again, with the stored rows forced through the model and without.

Three questions: does a path that met one version only replay from its sample alone; does every engine call replay
from its KV trace; and how far off is a path that an update crossed, which nothing can replay exactly, because each of
its positions would have to be computed under one version while the engine computed them under several.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.updates.rounds import TracedCall
from turnkeeper.demo.paths import read_versions
from turnkeeper.samples import Sample
from turnkeeper.tiny.checkpoint import read_weights
from turnkeeper.tiny.model import Chunk, TinyModel
from turnkeeper.tiny.scheduler.trace import replay

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


NO_GAP = Gap()
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


def replay_call(traced: TracedCall, weights: Weights) -> Gap:
    """An engine call against its own trace."""
    line = traced.line
    if not line["output_ids"]:
        return Gap(paths=1)
    models = {int(stamp): weights.get(meant["version"]) for stamp, meant in line["stamps"].items()}
    return _compare(replay(line, models).logprobs, traced.call.logprobs)


def replay_sample(sample: Sample, weights: Weights, *, uses_rows: bool) -> Gap:
    """A sample against the weights that sampled it.

    Each trained token is computed under its own version, over the whole path before it under the same version.

    Args:
        sample: with routing rows.
        weights: knows its versions.
        uses_rows: whether the sample's rows are forced; else the model routes as it likes.
    """
    versions = np.array(read_versions(sample))
    first = len(sample.tokens) - sample.response_length
    trained = sample.loss_mask == 1
    found = np.full(sample.response_length, np.nan)
    for version in sorted(set(versions[trained].tolist())):
        logprobs = _score(sample, weights.get(version), uses_rows=uses_rows)[first - 1 :]
        mine = trained & (versions == version)
        found[mine] = logprobs[mine]
    return _compare(found[trained], sample.rollout_log_probs[trained])


def _score(sample: Sample, model: TinyModel, *, uses_rows: bool) -> NDArray[np.float64]:
    """Shape [T-1]: the logprob of each token but the first."""
    ids = sample.tokens.astype(np.int32)
    rows = sample.rollout_routed_experts
    forced = rows.astype(np.int32) if uses_rows and rows is not None else None
    chunk = Chunk(ids=ids[:-1], kv=model.new_kv(len(ids) - 1), experts=forced)
    logits = model.forward([chunk], every_position=True).logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logits[np.arange(len(ids) - 1), ids[1:]]


def _compare(found: NDArray[np.float64], told: NDArray[np.float64]) -> Gap:
    differences = np.abs(found - told)
    return Gap(
        paths=1, tokens=len(differences), total=float(differences.sum()), worst=float(differences.max(initial=0.0))
    )
