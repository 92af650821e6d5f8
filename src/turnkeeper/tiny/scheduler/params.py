"""The sampling parameters of a request, under the engine's own names: no wire is known here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from turnkeeper.errors import RequestError

MOST_TOP_LOGPROBS = 20

GREEDY_BELOW = 1e-6
"""Temperatures below this are greedy, as in SGLang: dividing by them would leave nothing finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling, checked.

    Logits are changed in this order: penalties, bias, banned stop tokens, temperature. What then stands is the
    *sampled distribution*, whose logprob is reported; top-k, top-p and min-p cut the draw, not the report.
    """

    max_new_tokens: int | None = None
    """How many tokens at most; None: as many as the model has positions."""

    min_new_tokens: int = 0
    """Until so many are sampled, no stop token can be."""

    temperature: float = 1.0
    """0 (or next to it) is greedy: the most probable token, reported with its logprob at temperature 1."""

    top_p: float = 1.0
    """Keeps the most probable tokens up to the one with which their sum passes this."""

    top_k: int = -1
    """Keeps so many of the most probable tokens; -1 keeps all."""

    min_p: float = 0.0
    """Keeps tokens at least this times as probable as the most probable one."""

    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time it was sampled in this request."""

    presence_penalty: float = 0.0
    """Taken once from the logit of a token sampled in this request."""

    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens sampled in this request."""

    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    """Added to logits, by token id."""

    seed: int | None = None
    """Makes the draws of this request repeat, whatever else is in the batch."""

    stop: tuple[str, ...] = ()
    """Texts that end the request when they appear in its output."""

    stop_token_ids: frozenset[int] = frozenset()
    """Tokens that end the request, beside the checkpoint's own."""

    ignore_eos: bool = False
    """Whether the checkpoint's own stop tokens are sampled like any other; ``stop_token_ids`` still stop."""

    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text."""

    no_stop_trim: bool = False
    """Whether the text keeps the stop token or text that ended it."""

    top_logprobs: int = 0
    """How many of the most probable tokens to report beside each sampled one."""

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled, by name.

        Raises:
            RequestError: a value is out of its range.
        """
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise _out_of_range("max_new_tokens", self.max_new_tokens, "at least 0")
        if not 0 <= self.min_new_tokens <= (math.inf if self.max_new_tokens is None else self.max_new_tokens):
            raise _out_of_range("min_new_tokens", self.min_new_tokens, "between 0 and max_new_tokens")
        if not 0 <= self.temperature < math.inf:
            raise _out_of_range("temperature", self.temperature, "a number from 0")
        if not 0 < self.top_p <= 1:
            raise _out_of_range("top_p", self.top_p, "in (0, 1]")
        if self.top_k != -1 and self.top_k < 1:
            raise _out_of_range("top_k", self.top_k, "-1 (all) or at least 1")
        if not 0 <= self.min_p <= 1:
            raise _out_of_range("min_p", self.min_p, "in [0, 1]")
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise _out_of_range(name, getattr(self, name), "in [-2, 2]")
        if not 0 < self.repetition_penalty <= 2:
            raise _out_of_range("repetition_penalty", self.repetition_penalty, "in (0, 2]")
        if not 0 <= self.top_logprobs <= MOST_TOP_LOGPROBS:
            raise _out_of_range("top_logprobs", self.top_logprobs, f"between 0 and {MOST_TOP_LOGPROBS}")
        if any(not math.isfinite(bias) for bias in self.logit_bias.values()):
            raise _out_of_range("logit_bias", dict(self.logit_bias), "finite numbers by token id")

    @property
    def has_penalties(self) -> bool:
        """True if sampled tokens change the logits of later ones."""
        return bool(self.frequency_penalty or self.presence_penalty or self.repetition_penalty != 1)

    @property
    def is_truncating(self) -> bool:
        """True if tokens are drawn from a part of the sampled distribution."""
        return self.top_k != -1 or self.top_p < 1 or self.min_p > 0

    @property
    def is_greedy(self) -> bool:
        """True if the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def reported_temperature(self) -> float:
        """The temperature of the distribution whose logprobs are reported."""
        return 1.0 if self.is_greedy else self.temperature


def _out_of_range(name: str, value: object, expected: str) -> RequestError:
    return RequestError(f"{name} must be {expected}, got {value!r}", param=name)
