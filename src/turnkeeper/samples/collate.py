"""Samples as the padded arrays of one training step.

::

    input_ids        p p p s s t s .      p prompt, s sampled, t a tool's result, . padding
    attention_mask   1 1 1 1 1 1 1 0
    position_ids     0 1 2 3 4 5 6 0
    loss_mask        0 0 0 1 1 0 1 0
    rollout_log_probs        the log probability of the token at that place; 0.0 where it was not sampled
    rollout_routed_experts   the routing of the token at that place as input; -1 for the last token, which has none
    rollout_sampling_mask_offsets   where the mask of the token at that place begins in rollout_sampling_mask_ids

Every array has a place for each token, the ids of masks apart. A causal model predicts the token at place t + 1 at
place t: compare its ``logits[:, :-1]`` with ``input_ids[:, 1:]``, under ``loss_mask[:, 1:]`` and
``rollout_log_probs[:, 1:]``; with masks, over the ids from ``rollout_sampling_mask_offsets[:, 1:]`` on.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.errors import AssemblyError
from turnkeeper.samples.sample import Reward, Sample

NO_ROW = -1
"""Stands in for each expert of a token that has no row."""

_OF_MASKS = (
    "rollout_sampling_mask_ids",
    "rollout_sampling_mask_offsets",
    "rollout_full_log_probs",
    "rollout_temperatures",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedSamples:
    """B samples, padded at the end to T tokens."""

    input_ids: NDArray[np.int64]
    """Shape [B, T]."""
    attention_mask: NDArray[np.int64]
    """Shape [B, T]: 1 on tokens, 0 on padding."""
    position_ids: NDArray[np.int64]
    """Shape [B, T]: 0, 1, 2, ... in each sample; 0 on padding."""
    loss_mask: NDArray[np.float32]
    """Shape [B, T]: 1.0 on sampled tokens that train."""
    rollout_log_probs: NDArray[np.float32]
    """Shape [B, T]: under the weights that sampled the token; 0.0 where it was not sampled."""
    rewards: NDArray[np.float32]
    """Shape [B]: NaN where the sample has none."""
    rollout_routed_experts: NDArray[np.int32] | None
    """Shape [B, T, layers, topk]: `NO_ROW` where a token has no row. None where no sample has rows."""
    rollout_sampling_mask_ids: NDArray[np.int32] | None
    """Shape [M]: the sampling masks of all samples, one behind the other. None where no sample has masks."""
    rollout_sampling_mask_offsets: NDArray[np.int64] | None
    """Shape [B, T+1]: the mask of the token at [b, t] is ``ids[offsets[b, t]:offsets[b, t + 1]]``; empty where it was
    drawn from the whole vocabulary, was not sampled, or is padding. None where no sample has masks."""
    rollout_full_log_probs: NDArray[np.float32] | None
    """Shape [B, T]: over the whole vocabulary; 0.0 where the token was not sampled. None where no sample has masks, or
    one of those that do has none of these."""
    rollout_temperatures: NDArray[np.float32] | None
    """Shape [B, T]: what logits are divided by: 1.0 where the token was not sampled or decoding was greedy, NaN where
    it is unknown, since a request named none. None where no sample has masks."""

    def __repr__(self) -> str:
        """The shapes alone."""
        samples, tokens = self.input_ids.shape
        rows = "" if self.rollout_routed_experts is None else ", with routing rows"
        masks = "" if self.rollout_sampling_mask_ids is None else ", with sampling masks"
        return f"<PaddedSamples: {samples} samples of {tokens} tokens{rows}{masks}>"

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name; those of rows and of masks only where there are any."""
        arrays = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: array for name, array in arrays.items() if array is not None}

    def to_torch(self, device: Any = None) -> dict[str, Any]:
        """Return the arrays as tensors of torch by name; those of rows and of masks only where there are any.

        Args:
            device: where the tensors go, as torch names it; None leaves them in the memory of the arrays.

        Raises:
            ModuleNotFoundError: torch is not installed.
        """
        torch = importlib.import_module("torch")
        tensors = {name: torch.from_numpy(array) for name, array in self.to_dict().items()}
        return tensors if device is None else {name: tensor.to(device) for name, tensor in tensors.items()}


def collate(
    samples: Sequence[Sample], *, pad_id: int = 0, multiple_of: int = 1, reward_key: str | None = None
) -> PaddedSamples:
    """Pad samples, of whatever sessions, to arrays of one length.

    Args:
        samples: at least one.
        pad_id: the token that pads.
        multiple_of: T is a multiple of it.
        reward_key: which number of a reward that is an object counts.

    Raises:
        AssemblyError: there is no sample, a reward is not one number, or the rows of two samples have other shapes.
    """
    if not samples:
        raise AssemblyError("there is no sample to pad", hint="a session can give none: see SampleBatch.empty_reason")
    lengths_B = np.array([len(sample.tokens) for sample in samples])
    width = -(-int(lengths_B.max()) // multiple_of) * multiple_of
    places_T = np.arange(width)
    is_token_BT = places_T < lengths_B[:, None]
    padded = PaddedSamples(
        input_ids=np.full(is_token_BT.shape, pad_id, np.int64),
        attention_mask=is_token_BT.astype(np.int64),
        position_ids=np.where(is_token_BT, places_T, 0),
        loss_mask=np.zeros(is_token_BT.shape, np.float32),
        rollout_log_probs=np.zeros(is_token_BT.shape, np.float32),
        rewards=np.array([_read_reward(sample.reward, reward_key) for sample in samples], np.float32),
        rollout_routed_experts=_pad_rows(samples, width),
        **_pad_masks(samples, width),
    )
    for index, sample in enumerate(samples):
        stop = len(sample.tokens)
        start = stop - sample.response_length
        padded.input_ids[index, :stop] = sample.tokens
        padded.loss_mask[index, start:stop] = sample.loss_mask
        padded.rollout_log_probs[index, start:stop] = sample.rollout_log_probs
    return padded


def _pad_rows(samples: Sequence[Sample], width: int) -> NDArray[np.int32] | None:
    found = {index: rows for index, each in enumerate(samples) if (rows := each.rollout_routed_experts) is not None}
    shapes = {rows.shape[1:] for rows in found.values()}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise AssemblyError(f"the routing rows of samples have one shape [layers, topk], got {sorted(shapes)}")
    padded = np.full((len(samples), width, *shapes.pop()), NO_ROW, np.int32)
    for index, rows in found.items():
        padded[index, : len(rows)] = rows
    return padded


def _pad_masks(samples: Sequence[Sample], width: int) -> dict[str, NDArray[Any] | None]:
    """Put the masks of samples one behind the other, and what belongs to them in places."""
    found = {index: ids for index, each in enumerate(samples) if (ids := each.rollout_sampling_mask_ids) is not None}
    if not found:
        return dict.fromkeys(_OF_MASKS)
    counts = np.zeros((len(samples), width), np.int64)
    full = np.zeros((len(samples), width), np.float32)
    temperatures = np.ones((len(samples), width), np.float32)
    has_full = all(samples[index].rollout_full_log_probs is not None for index in found)
    for index, sample in enumerate(samples):
        place = slice(len(sample.tokens) - sample.response_length, len(sample.tokens))
        offsets, given = sample.rollout_sampling_mask_offsets, sample.rollout_temperatures
        whole = sample.rollout_full_log_probs
        if offsets is not None:
            counts[index, place] = np.diff(offsets)
        full[index, place] = sample.rollout_log_probs if whole is None else whole
        unknown = np.where(sample.loss_mask, np.nan, 1.0)
        temperatures[index, place] = unknown if given is None else np.where(given == 0, 1.0, given)
    ends = np.cumsum(counts).reshape(counts.shape)
    starts = np.concatenate([[0], ends[:-1, -1]])
    joined, offsets = np.concatenate(list(found.values())), np.concatenate([starts[:, None], ends], axis=1)
    return dict(zip(_OF_MASKS, (joined, offsets, full if has_full else None, temperatures), strict=True))


def _read_reward(reward: Reward | None, key: str | None) -> float:
    if reward is None:
        return float("nan")
    if not isinstance(reward, Mapping):
        return float(reward)
    value = None if key is None else reward.get(key)
    if isinstance(value, int | float):
        return float(value)
    raise AssemblyError(
        f"a reward must be one number, got an object of {', '.join(map(str, reward))}",
        hint="choose one of its numbers: reward_key",
    )
