"""The sampler.

1. Reported logprobs are those of the distribution after penalties, bias and temperature, before truncation.
2. Draws follow that distribution, truncated and renormalised, by a chi-square test against an independent softmax.
3. Temperature 0 takes the most probable token and reports its logprob at temperature 1.
4. A seed repeats; what a row draws depends on no other row.
5. Out-of-range parameters are refused by name.
"""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from turnkeeper.errors import RequestError
from turnkeeper.tiny.scheduler import Sampler, SamplingParams, sample

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 3.0, 2.5, -4.0], np.float32)
DRAWS = 4000


def _sampler(**params: Any) -> Sampler:
    return Sampler(SamplingParams(**params), fallback_seed=(1, 2), stop_ids=[5])


def _oracle(temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0, min_p: float = 0.0) -> list[float]:
    """The truncated distribution, in plain Python."""
    powers = [math.exp(float(x) / temperature) for x in LOGITS]
    share = [p / sum(powers) for p in powers]
    ranked = sorted(range(8), key=lambda i: -share[i])
    kept: set[int] = set()
    total = 0.0
    for rank, i in enumerate(ranked):
        if total <= top_p and (top_k == -1 or rank < top_k) and share[i] >= share[ranked[0]] * min_p:
            kept.add(i)
        total += share[i]
    whole = sum(share[i] for i in kept)
    return [share[i] / whole if i in kept else 0.0 for i in range(8)]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({}, id="plain"),
        pytest.param({"temperature": 0.5}, id="cold"),
        pytest.param({"temperature": 2.0}, id="hot"),
        pytest.param({"top_k": 3}, id="top-k"),
        pytest.param({"top_p": 0.8}, id="top-p"),
        pytest.param({"min_p": 0.2}, id="min-p"),
        pytest.param({"temperature": 1.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1}, id="all"),
    ],
)
def test_draws_follow_the_distribution(params: dict[str, Any]) -> None:
    samplers = [_sampler(seed=i, **params) for i in range(DRAWS)]
    drawn = sample(np.tile(LOGITS, (DRAWS, 1)), samplers)
    counts = np.bincount([s.token_id for s in drawn], minlength=8)
    expected = np.array(_oracle(**params)) * DRAWS
    assert not counts[expected == 0].any(), "a token that was cut was drawn"
    seen = expected > 0
    chi_square = ((counts[seen] - expected[seen]) ** 2 / expected[seen]).sum()
    assert chi_square < 24.3, "the 99.9th percentile at 7 degrees of freedom"
    full = _oracle(params.get("temperature", 1.0))
    np.testing.assert_allclose([s.logprob for s in drawn], [math.log(full[s.token_id]) for s in drawn], atol=1e-5)


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-7])
def test_temperature_zero_takes_the_most_probable_token(temperature: float) -> None:
    (drawn,) = sample(LOGITS[None], [_sampler(temperature=temperature)])
    assert drawn.token_id == 5
    assert drawn.logprob == pytest.approx(math.log(_oracle()[5]), abs=1e-5)


def test_the_coldest_temperature_that_divides_gives_finite_logprobs() -> None:
    (drawn,) = sample(LOGITS[None], [_sampler(temperature=1e-6)])
    assert (drawn.token_id, drawn.logprob) == (5, 0.0)


def test_the_top_logprobs_are_of_the_same_distribution() -> None:
    (drawn,) = sample(LOGITS[None], [_sampler(temperature=0.5, top_k=1, top_logprobs=3)])
    full = _oracle(0.5)
    assert [token for _, token in drawn.top] == [5, 6, 0]
    np.testing.assert_allclose([p for p, _ in drawn.top], [math.log(full[t]) for _, t in drawn.top], atol=1e-5)


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    def draws(others: int) -> list[int]:
        mine = _sampler(seed=11)
        mates = [_sampler(seed=i, top_k=2, temperature=0.3) for i in range(others)]
        return [sample(np.tile(LOGITS, (others + 1, 1)), [*mates, mine])[-1].token_id for _ in range(30)]

    assert draws(0) == draws(5)


def _adjusted(history: list[int], **params: Any) -> NDArray[np.float32]:
    sampler = _sampler(**params)
    for token in history:
        sampler.count(token)
    row = LOGITS.copy()
    sampler.adjust(row)
    return row


@pytest.mark.parametrize(
    ("params", "changes"),
    [
        pytest.param({"frequency_penalty": 0.5}, {0: 2.0 - 1.0, 4: -1.0 - 0.5}, id="frequency, each time"),
        pytest.param({"presence_penalty": 0.5}, {0: 1.5, 4: -1.5}, id="presence, once"),
        pytest.param({"repetition_penalty": 2.0}, {0: 1.0, 4: -2.0}, id="repetition, away from probable"),
        pytest.param({"logit_bias": {7: 9.0}}, {7: 5.0}, id="bias"),
        pytest.param({"min_new_tokens": 4}, {5: -math.inf}, id="no stop before the minimum"),
        pytest.param({"min_new_tokens": 3}, {}, id="a stop from the minimum on"),
    ],
)
def test_what_was_sampled_changes_the_next_logits(params: dict[str, Any], changes: dict[int, float]) -> None:
    expected = LOGITS.copy()
    for token, value in changes.items():
        expected[token] = value
    np.testing.assert_allclose(_adjusted([0, 4, 0], **params), expected)


def test_logits_are_left_as_they_were() -> None:
    logits = LOGITS[None].copy()
    sample(logits, [_sampler(logit_bias={0: 5.0}, top_k=1, temperature=0.1)])
    np.testing.assert_array_equal(logits[0], LOGITS)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
    ],
)
def test_parameters_out_of_range_are_refused(params: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        SamplingParams(**params)
    assert caught.value.facts["param"] == named
