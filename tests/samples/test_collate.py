"""Samples as padded arrays.

1. Every array has a place for each token, and holds at it what the sample says of that token; padding is at the end.
2. The width is that of the longest sample, rounded up.
3. Rewards are numbers, NaN where there is none; one of several is chosen by its key.
4. Tensors of torch hold the same.
5. The masks of all samples stand one behind the other, and each place has its own.
"""

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channelkit import take_tensors
from turnkeeper.errors import AssemblyError
from turnkeeper.samples import PaddedSamples, Sample, SampleStatus, collate

ROWS = np.arange(8, dtype=np.int32).reshape(2, 2, 2)


def make_sample(tokens: list[int], mask: list[int], logprobs: list[float], **fields: Any) -> Sample:
    return Sample(
        tokens=np.array(tokens, np.int64),
        loss_mask=np.array(mask, np.uint8),
        rollout_log_probs=np.array(logprobs, np.float64),
        response="x",
        status=SampleStatus.COMPLETED,
        **take_tensors(fields),
    )


SHORT = make_sample([7, 8, 9], [1], [-0.5], reward=1.0, rollout_routed_experts=ROWS)
LONG = make_sample([1, 2, 3, 4, 5], [1, 0, 1], [-1.0, 0.0, -2.0])
MASKED = make_sample(
    [6, 7, 8, 9],
    [1, 0, 1],
    [-0.1, 0.0, -0.2],
    rollout_sampling_mask_ids=np.array([7, 5, 9], np.int32),
    rollout_sampling_mask_offsets=np.array([0, 2, 2, 3], np.int64),
    rollout_full_log_probs=np.array([-0.5, 0.0, -0.75]),
    rollout_temperatures=np.array([0.5, 0.0, np.nan]),
)


def test_every_array_has_a_place_for_each_token() -> None:
    padded = collate([SHORT, LONG], pad_id=99, multiple_of=4)
    assert padded.input_ids.tolist() == [[7, 8, 9, 99, 99, 99, 99, 99], [1, 2, 3, 4, 5, 99, 99, 99]]
    assert padded.attention_mask.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert padded.position_ids.tolist() == [[0, 1, 2, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 0, 0, 0]]
    assert padded.loss_mask.tolist() == [[0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 1, 0, 0, 0]]
    assert padded.rollout_log_probs.tolist() == [[0, 0, -0.5, 0, 0, 0, 0, 0], [0, 0, -1, 0, -2, 0, 0, 0]]
    assert padded.rewards[0] == 1
    assert np.isnan(padded.rewards[1])
    rows = padded.rollout_routed_experts
    assert rows is not None
    assert rows[0, :2].tolist() == ROWS.tolist()
    assert (rows[0, 2:] == -1).all()
    assert (rows[1] == -1).all()
    assert rows.shape == (2, 8, 2, 2)
    assert repr(padded) == "<PaddedSamples: 2 samples of 8 tokens, with routing rows>"
    assert {str(array.dtype) for array in padded.to_dict().values()} == {"int64", "float32", "int32"}


def test_without_rows_there_are_none() -> None:
    padded = collate([LONG])
    assert padded.rollout_routed_experts is None
    assert list(padded.to_dict()) == [
        "input_ids",
        "attention_mask",
        "position_ids",
        "loss_mask",
        "rollout_log_probs",
        "rewards",
    ]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5), st.sampled_from([1, 2, 8]))
def test_what_is_not_padding_is_the_sample(sizes: list[tuple[int, int]], multiple_of: int) -> None:
    samples = [
        make_sample(
            list(range(1, prompt + size + 1)), [n % 2 for n in range(size)], [-0.5 * (n % 2) for n in range(size)]
        )
        for prompt, size in sizes
    ]
    padded = collate(samples, multiple_of=multiple_of)
    width = padded.input_ids.shape[1]
    longest = max(len(sample.tokens) for sample in samples)
    assert (width % multiple_of, longest <= width < longest + multiple_of) == (0, True)
    for index, sample in enumerate(samples):
        kept = padded.attention_mask[index] == 1
        assert padded.input_ids[index][kept].tolist() == sample.tokens.tolist()
        start = len(sample.tokens) - sample.response_length
        assert padded.loss_mask[index][kept].tolist()[start:] == sample.loss_mask.tolist()
        assert padded.loss_mask[index].sum() == sample.loss_mask.sum()
        assert padded.rollout_log_probs[index].sum() == pytest.approx(sample.rollout_log_probs.sum())
        assert (padded.input_ids[index][~kept] == 0).all()


def read_masks(padded: PaddedSamples) -> list[list[list[int]]]:
    ids, offsets = padded.rollout_sampling_mask_ids, padded.rollout_sampling_mask_offsets
    assert ids is not None
    assert offsets is not None
    assert (ids.dtype, offsets.dtype) == (np.int32, np.int64)
    assert offsets.shape == (padded.input_ids.shape[0], padded.input_ids.shape[1] + 1)
    return [[ids[start:stop].tolist() for start, stop in pairwise(row)] for row in offsets.tolist()]


def test_masks_are_those_of_their_places() -> None:
    padded = collate([SHORT, MASKED, LONG, MASKED])
    own = [[], [7, 5], [], [9], []]
    assert read_masks(padded) == [[[]] * 5, own, [[]] * 5, own]
    full, temperatures = padded.rollout_full_log_probs, padded.rollout_temperatures
    assert full is not None
    assert temperatures is not None
    assert full.tolist() == [[0, 0, -0.5, 0, 0], [0, -0.5, 0, -0.75, 0], [0, 0, -1, 0, -2], [0, -0.5, 0, -0.75, 0]]
    known = np.nan_to_num(temperatures, nan=-1).tolist()
    assert known == [[1, 1, -1, 1, 1], [1, 0.5, 1, -1, 1], [1, 1, -1, 1, -1], [1, 0.5, 1, -1, 1]]
    assert (full.dtype, temperatures.dtype) == (np.float32, np.float32)
    assert repr(padded) == "<PaddedSamples: 4 samples of 5 tokens, with routing rows, with sampling masks>"
    within = MASKED.replace_tensors(rollout_full_log_probs=None)
    assert collate([within, MASKED]).rollout_full_log_probs is None, "those of one sample are within its masks alone"


@given(st.lists(st.none() | st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=5))
def test_masks_stay_those_of_their_tokens(counts: list[list[int] | None]) -> None:
    """None stands for a sample without masks; the ids of all masks are numbered through."""
    fresh = iter(range(1000))
    samples, expected = [], []
    for own in counts:
        masks = [[next(fresh) for _ in range(size)] for size in own or ()]
        fields: dict[str, Any] = {}
        if own is not None:
            fields["rollout_sampling_mask_ids"] = np.array([i for mask in masks for i in mask], np.int32)
            fields["rollout_sampling_mask_offsets"] = np.cumsum([0, *own]).astype(np.int64)
        size = len(masks)
        samples.append(make_sample([1] * (size + 2), [1] * size, [-1.0] * size, **fields))
        expected.append([[], [], *masks])
    padded = collate(samples)
    if all(own is None for own in counts):
        assert padded.rollout_sampling_mask_ids is None
        return
    width = padded.input_ids.shape[1]
    assert read_masks(padded) == [[*masks, *[[]] * (width - len(masks))] for masks in expected]


def test_one_of_several_named_numbers_is_chosen_by_its_key() -> None:
    named = make_sample([1, 2], [1], [-1.0], reward={"format": 0, "answer": 0.5})
    assert collate([named, SHORT], reward_key="answer").rewards.tolist() == [0.5, 1.0]
    for key in (None, "style"):
        with pytest.raises(AssemblyError, match="an object of format, answer"):
            collate([named], reward_key=key)


def test_what_cannot_be_padded_is_refused() -> None:
    with pytest.raises(AssemblyError, match="no sample"):
        collate([])
    other = make_sample([1, 2], [1], [-1.0], rollout_routed_experts=np.zeros((1, 3, 2), np.int32))
    with pytest.raises(AssemblyError, match=r"\(2, 2\), \(3, 2\)"):
        collate([SHORT, other])


class Tensor:
    """As much of a tensor of torch, which is not installed here, as `to_torch` uses."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device = array, device

    def to(self, device: str) -> "Tensor":
        return Tensor(self.array, device)


@pytest.mark.parametrize("device", [None, "cuda:0"])
def test_tensors_hold_the_arrays(monkeypatch: pytest.MonkeyPatch, device: str | None) -> None:
    torch = ModuleType("torch")
    torch.from_numpy = Tensor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    padded = collate([SHORT, MASKED])
    arrays, tensors = padded.to_dict(), padded.to_torch(device)
    assert list(tensors) == list(arrays)
    for name, tensor in tensors.items():
        assert (tensor.array is arrays[name], tensor.device) == (True, device or "cpu")
