"""Compute the logprobs of a KV trace again with the torch model: a trainer's arithmetic, none of the engine's.

    turnkeeper engine --debug-kv-trace trace.jsonl        # and play something truncated on it
    python -m training.replay trace.jsonl

forces the experts that the trace has, and normalises as a trainer does: logits of what a mask leaves out become minus
infinity before the softmax. It prints how far off the engine's logprobs are, over the whole vocabulary and within the
masks, and fails above 0.0005: torch computes in float64 here, so the engine's own rounding is all that is left. What
was computed over KV of several weights is counted and left out, since it takes the engine's cache to compute it again
(`turnkeeper.tiny.scheduler.trace.replay` does).
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from training.torch_model import Batch, TorchModel
from turnkeeper.jsontypes import JsonObject
from turnkeeper.tiny.checkpoint import read_weights

LIMIT = 5e-4


@dataclass(slots=True)
class Differences:
    """Absolute differences of logprobs, in nats, one a token."""

    found: list[Tensor] = field(default_factory=list[Tensor])

    def add(self, ours: Tensor, theirs: list[float]) -> None:
        """Compare what torch computes with what the engine told."""
        self.found.append((ours - torch.tensor(theirs, dtype=ours.dtype)).abs())

    @property
    def worst(self) -> float:
        """The largest."""
        return float(torch.cat(self.found).max()) if self.found else 0.0

    def __str__(self) -> str:
        """Mean, worst, and of how many tokens."""
        every = torch.cat(self.found) if self.found else torch.zeros(0)
        return f"{float(every.mean()):.1e} on average, {self.worst:.1e} at worst, {len(every):,} tokens"


@dataclass(slots=True)
class Report:
    """What became of a trace."""

    full: Differences = field(default_factory=Differences)
    """Over the whole vocabulary, on both sides."""
    masked: Differences = field(default_factory=Differences)
    """Within the masks, on both sides."""
    unmasked: Differences = field(default_factory=Differences)
    """Ours over the whole vocabulary, the engine's within the masks."""
    wide: int = 0
    """Tokens whose masks hold more than one id."""
    several: int = 0
    """Tokens that were sampled over KV of several weights."""


def replay_line(line: JsonObject, models: dict[str, TorchModel], report: Report) -> None:
    """Compare one request with its line."""
    prompt: list[int] = line["prompt_ids"]
    for epoch in line["epochs"]:
        start, end = epoch["start"], epoch["end"]
        sources = {line["stamps"][str(stamp)]["source"] for stamp in epoch["kv_stamps"]}
        if len(sources) > 1:
            report.several += end - start
            continue
        model = _get_model(models, sources.pop())
        ids = prompt + line["output_ids"][:end]
        experts = torch.tensor(epoch["kv_experts"])
        logits = _score(model, ids, len(prompt), experts)[start:] / line["temperature"]
        sampled = torch.tensor(ids[len(prompt) + start :])
        whole = logits.log_softmax(-1).gather(-1, sampled[:, None]).squeeze(-1)
        report.full.add(whole, line["logprobs"][start:end])
        if line["sampling_masks"] is not None:
            masks = line["sampling_masks"][start:end]
            theirs = line["sampling_logprobs"][start:end]
            report.masked.add(score_within(logits, sampled, masks), theirs)
            report.unmasked.add(whole, theirs)
            report.wide += sum(len(mask) > 1 for mask in masks)


def score_within(logits: Tensor, sampled: Tensor, masks: list[list[int]]) -> Tensor:
    """The logprob of each sampled token within its mask, as a trainer computes it."""
    left_out = torch.ones_like(logits, dtype=torch.bool)
    for row, mask in enumerate(masks):
        left_out[row, mask] = False
    return logits.masked_fill(left_out, -torch.inf).log_softmax(-1).gather(-1, sampled[:, None]).squeeze(-1)


def _score(model: TorchModel, ids: list[int], prompt: int, experts: Tensor) -> Tensor:
    """Logits behind every token from the prompt's last one on, except the last of all: [output, V]."""
    suffix = torch.tensor(ids[prompt - 1 : -1])
    every = torch.arange(len(suffix))
    batch = Batch(
        episodes=1, length=len(suffix), ids_N=suffix, places_N=every, selected=every, targets=every, owners=every
    )
    with torch.no_grad():
        return model(torch.tensor(ids[: prompt - 1], dtype=torch.long), batch, experts).logits


def _get_model(models: dict[str, TorchModel], source: str) -> TorchModel:
    if source not in models:
        checkpoint = read_weights(Path(source))
        models[source] = TorchModel(checkpoint.shape, seed=0)
        models[source].load(checkpoint.weights)
        models[source].double()
    return models[source]


def _read(paths: list[Path]) -> Iterator[JsonObject]:
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            yield from (line for line in map(json.loads, lines) if line["is_plain"])


def main() -> None:
    """Replay and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+")
    args = parser.parse_args()
    report, models = Report(), dict[str, TorchModel]()
    for line in _read(args.traces):
        replay_line(line, models, report)
    print(f"whole vocabulary:             {report.full}")
    print(f"within masks:                 {report.masked} ({report.wide:,} of more than one id)")
    print(f"whole vocabulary, not masked: {report.unmasked}")
    print(f"left out, over KV of several weights: {report.several:,} tokens")
    if max(report.full.worst, report.masked.worst) > LIMIT:
        raise SystemExit(f"that is more than {LIMIT}")


if __name__ == "__main__":
    main()
