"""The toy transformer.

1. Whatever the batching, chunking and caching, logits agree with a token-by-token oracle and experts are its own.
2. A token's numbers do not depend on its batch mates.
3. Forced experts are used, weighed by the router's own probabilities, and recorded as they were forced.
4. Buffers grow without changing what they hold, and end with the model's positions.
5. Weights that do not fit the shape are refused by name.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiny.oracle import naive_forward
from turnkeeper.errors import ConfigError
from turnkeeper.tiny.model import Chunk, TinyModel, TinyShape, init_weights
from turnkeeper.tiny.model.cache import SMALLEST_CAPACITY

SHAPE = TinyShape(vocab_size=40, hidden_size=32, num_hidden_layers=2, moe_intermediate_size=16)
WEIGHTS = init_weights(SHAPE, 7)
MODEL = TinyModel(SHAPE, WEIGHTS)

sequences = st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=12), min_size=1, max_size=4)


def _ids(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


# Derandomized: float32 and float64 may rank two experts differently that are closer than their rounding.
@settings(max_examples=40, deadline=None, derandomize=True)
@given(sequences=sequences, cuts=st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_batches_and_chunks_agree_with_the_token_by_token_oracle(sequences: list[list[int]], cuts: list[int]) -> None:
    kvs = [MODEL.new_kv() for _ in sequences]
    first = [Chunk(ids=_ids(ids[:cut]), kv=kv) for ids, cut, kv in zip(sequences, cuts, kvs, strict=False)]
    logits = [*MODEL.forward(first, stamp=1).logits]
    while rest := [i for i, (ids, kv) in enumerate(zip(sequences, kvs, strict=True)) if kv.length < len(ids)]:
        step = [Chunk(ids=_ids(sequences[i][kvs[i].length : kvs[i].length + 1]), kv=kvs[i]) for i in rest]
        for i, row in zip(rest, MODEL.forward(step, stamp=2).logits, strict=True):
            logits[i] = row
    for ids, cut, kv, row in zip(sequences, cuts, kvs, logits, strict=False):
        expected, experts = naive_forward(SHAPE, WEIGHTS, ids)
        np.testing.assert_allclose(row, expected[-1], atol=1e-4)
        np.testing.assert_array_equal(kv.experts[: kv.length], experts)
        np.testing.assert_array_equal(kv.stamps[: kv.length], [1] * min(cut, len(ids)) + [2] * (len(ids) - cut))


def test_logits_of_every_position_are_those_of_the_oracle() -> None:
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    found = MODEL.forward([Chunk(ids=_ids(ids), kv=MODEL.new_kv())], every_position=True)
    expected, experts = naive_forward(SHAPE, WEIGHTS, ids)
    np.testing.assert_allclose(found.logits, expected, atol=1e-4)
    np.testing.assert_array_equal(found.experts, experts)


@pytest.mark.parametrize("mates", [1, 2, 7, 31])
def test_a_token_does_not_depend_on_its_batch_mates(mates: int) -> None:
    rng = np.random.default_rng(mates)
    alone, together = MODEL.new_kv(), MODEL.new_kv()
    ids = _ids([5, 6, 7, 8])
    first = MODEL.forward([Chunk(ids=ids, kv=alone)])
    others = [
        Chunk(ids=rng.integers(0, 40, rng.integers(1, 9)).astype(np.int32), kv=MODEL.new_kv()) for _ in range(mates)
    ]
    second = MODEL.forward([*others, Chunk(ids=ids, kv=together)])
    np.testing.assert_allclose(second.logits[-1], first.logits[0], atol=1e-5)
    np.testing.assert_array_equal(second.experts[-4:], first.experts)


def test_forced_experts_are_used_and_recorded() -> None:
    ids = [1, 2, 3, 4, 5]
    forced = np.random.default_rng(1).permuted(np.tile(np.arange(8, dtype=np.int32), (5, 2, 1)), axis=-1)[:, :, :2]
    kv = MODEL.new_kv()
    found = MODEL.forward([Chunk(ids=_ids(ids), kv=kv, experts=forced)], every_position=True)
    expected, _ = naive_forward(SHAPE, WEIGHTS, ids, forced)
    own, _ = naive_forward(SHAPE, WEIGHTS, ids)
    np.testing.assert_allclose(found.logits, expected, atol=1e-4)
    np.testing.assert_array_equal(kv.experts[:5], forced)
    assert np.abs(expected - own).max() > 0.1, "the experts were meant to differ"


def test_a_very_negative_gate_closes_quietly() -> None:
    weights = WEIGHTS | {name: array * 100 for name, array in WEIGHTS.items() if "experts_in" in name}
    found = TinyModel(SHAPE, weights).forward([Chunk(ids=_ids([1, 2, 3]), kv=MODEL.new_kv())])
    assert np.isfinite(found.logits).all()


def test_experts_are_forced_for_all_chunks_or_for_none() -> None:
    forced = np.zeros((1, 2, 2), np.int32)
    with pytest.raises(ValueError, match="every chunk"):
        MODEL.forward(
            [Chunk(ids=_ids([1]), kv=MODEL.new_kv(), experts=forced), Chunk(ids=_ids([1]), kv=MODEL.new_kv())]
        )


def test_a_buffer_grows_past_its_capacity() -> None:
    ids = [int(i) for i in np.random.default_rng(2).integers(0, 40, SMALLEST_CAPACITY + 1)]
    kv = MODEL.new_kv()
    MODEL.forward([Chunk(ids=_ids(ids[:-1]), kv=kv)])
    found = MODEL.forward([Chunk(ids=_ids(ids[-1:]), kv=kv)])
    at_once = MODEL.forward([Chunk(ids=_ids(ids), kv=MODEL.new_kv())])
    np.testing.assert_allclose(found.logits, at_once.logits, atol=1e-4)
    np.testing.assert_array_equal(kv.experts[: kv.length], at_once.experts)


def test_a_sequence_ends_with_the_models_positions() -> None:
    model = TinyModel(TinyShape(max_position_embeddings=4), init_weights(TinyShape(), 0))
    kv = model.new_kv()
    model.forward([Chunk(ids=_ids([1, 2, 3]), kv=kv)])
    with pytest.raises(ValueError, match="4 positions"):
        model.forward([Chunk(ids=_ids([1, 2]), kv=kv)])
    assert kv.length == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"layers.1.router": None}, "layers.1.router", id="missing"),
        pytest.param({"embed": np.zeros((41, 32), np.float32)}, "embed", id="another vocabulary"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: dict[str, NDArray[np.float32] | None], named: str) -> None:
    weights = {name: array for name, array in (WEIGHTS | change).items() if array is not None}
    with pytest.raises(ConfigError, match=named):
        TinyModel(SHAPE, weights)
