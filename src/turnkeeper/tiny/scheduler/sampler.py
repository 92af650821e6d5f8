"""Logits to tokens, for a whole batch at once.

Each request draws one uniform number a token from a generator of its own and inverts its distribution in
vocabulary order, so a request with a seed repeats whatever its batch mates are, as far as its logits do.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turnkeeper.tiny.scheduler.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMask:
    """What a token was drawn from."""

    ids: tuple[int, ...]
    """The tokens that top-k, top-p and min-p left in, most probable first; the drawn one is among them."""

    logprob: float
    """Of the drawn token within these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """One sampled token."""

    token_id: int
    logprob: float
    """Of the sampled distribution: after penalties, bias and temperature, before top-k, top-p and min-p."""

    top: tuple[tuple[float, int], ...] = ()
    """The most probable tokens of the same distribution as (logprob, id), most probable first."""

    mask: SamplingMask | None = None
    """None where its request does not keep masks."""


class Sampler:
    """One request's draws: its generator, and what it has sampled where penalties count that."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        fallback_seed: Sequence[int],
        stop_ids: Collection[int],
        keeps_masks: bool = False,
    ) -> None:
        """Begin a request.

        Args:
            params: what the request asks for.
            fallback_seed: seeds the draws of a request without a seed.
            stop_ids: the tokens that ``min_new_tokens`` bans.
            keeps_masks: whether each token comes with what it was drawn from.
        """
        self.params = params
        self.keeps_masks = keeps_masks
        self._rng = np.random.default_rng(fallback_seed if params.seed is None else [abs(params.seed), params.seed < 0])
        self._stop_ids = np.fromiter(stop_ids, np.int64)
        self._counts: dict[int, int] = {}
        self._count = 0

    @property
    def changes_logits(self) -> bool:
        """True if `adjust` has anything to do for the next token."""
        return bool(self._counts or self.params.logit_bias or self._count < self.params.min_new_tokens)

    def adjust(self, logits: NDArray[np.float32]) -> None:
        """Apply penalties, bias and the ban of early stops to one row of logits, in place."""
        params = self.params
        if self._counts:
            ids = np.fromiter(self._counts, np.int64)
            row = logits[ids]
            row = np.where(row > 0, row / params.repetition_penalty, row * params.repetition_penalty)
            row -= params.frequency_penalty * np.fromiter(self._counts.values(), np.float32)
            logits[ids] = row - params.presence_penalty
        for token, bias in params.logit_bias.items():
            logits[token] += bias
        if self._count < params.min_new_tokens:
            logits[self._stop_ids] = -np.inf

    def draw(self) -> float:
        """Draw the next uniform number in [0, 1)."""
        return self._rng.random()

    def count(self, token_id: int) -> None:
        """Take note of a sampled token."""
        self._count += 1
        if self.params.has_penalties:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1


def sample(logits: NDArray[np.float32], samplers: Sequence[Sampler]) -> list[SampledToken]:
    """Sample one token for each row.

    Args:
        logits: [rows, vocabulary], left as they are.
        samplers: one a row.
    """
    logits = logits.copy()
    for row, sampler in zip(logits, samplers, strict=True):
        if sampler.changes_logits:
            sampler.adjust(row)
    temperatures = np.array([sampler.params.reported_temperature for sampler in samplers], np.float32)
    logprobs = _log_softmax(logits / temperatures[:, None])
    weights = np.exp(logprobs, dtype=np.float64)
    for row, sampler in zip(weights, samplers, strict=True):
        _truncate(row, sampler.params)
    sums = np.cumsum(weights, axis=-1)
    targets = np.array([sampler.draw() for sampler in samplers]) * sums[:, -1]
    drawn = (sums <= targets[:, None]).sum(axis=-1)
    chosen = [int(logprobs[i].argmax() if sampler.params.is_greedy else drawn[i]) for i, sampler in enumerate(samplers)]
    for sampler, token_id in zip(samplers, chosen, strict=True):
        sampler.count(token_id)
    return [
        SampledToken(
            token_id=token_id,
            logprob=float(row[token_id]),
            top=_top(row, sampler.params.top_logprobs),
            mask=_build_mask(kept, token_id, sampler.params) if sampler.keeps_masks else None,
        )
        for token_id, row, kept, sampler in zip(chosen, logprobs, weights, samplers, strict=True)
    ]


def _truncate(weights: NDArray[np.float64], params: SamplingParams) -> None:
    """Set to 0 what top-k, top-p and min-p leave out, each judged on the whole distribution."""
    if not params.is_truncating:
        return
    order = np.argsort(-weights, kind="stable")
    ranked = weights[order]
    left_out = np.cumsum(ranked) - ranked > params.top_p
    left_out |= ranked < ranked[0] * params.min_p
    if params.top_k != -1:
        left_out[params.top_k :] = True
    weights[order[left_out]] = 0


def _build_mask(weights: NDArray[np.float64], token_id: int, params: SamplingParams) -> SamplingMask:
    """Read a mask off the weights that were drawn from; greedy sampling leaves the token alone in it."""
    if params.is_greedy:
        return SamplingMask(ids=(token_id,), logprob=0.0)
    kept = np.flatnonzero(weights)
    ranked = kept[np.argsort(-weights[kept], kind="stable")]
    share = weights[token_id] / weights[kept].sum()
    return SamplingMask(ids=tuple(ranked.tolist()), logprob=float(np.log(share)))


def _log_softmax(x: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _top(logprobs: NDArray[np.float32], count: int) -> tuple[tuple[float, int], ...]:
    best = np.argsort(-logprobs, kind="stable")[:count] if count else ()
    return tuple((float(logprobs[i]), int(i)) for i in best)
