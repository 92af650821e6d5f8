"""A request to the engine, its deltas and its result. Values only; the names of the wire are elsewhere."""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from turnkeeper.tiny.scheduler.params import SamplingParams
from turnkeeper.tiny.scheduler.sampler import SamplingMask


class FinishKind(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of a request."""

    kind: FinishKind

    matched: int | str | None = None
    """The stop token's id or the stop text, for a stop."""

    message: str = ""
    """Why, for an abort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One generation."""

    rid: str
    prompt_ids: NDArray[np.int32]
    """[prompt], at least one."""

    params: SamplingParams
    cache_salt: str = ""
    """Only requests of the same salt share cached prefixes."""

    is_streamed: bool = False
    """Whether deltas are wanted before the result."""

    has_masks: bool = False
    """Whether the tokens come with their sampling masks."""

    routing_key: str = ""
    """Whom it is for, as its sender says in the header ``X-SMG-Routing-Key``; only the trace repeats it."""

    is_probe: bool = False
    """A health check: it leaves no line in the KV trace, and does not change which draws later requests get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSpan:
    """Output tokens ``[start, end)``, sampled by one weight version."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTokens:
    """Sampled tokens; what there is of them is parallel."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    tops: tuple[tuple[tuple[float, int], ...], ...] = ()
    """Of each token the most probable ones as (logprob, id); empty where none were asked for."""

    masks: tuple[SamplingMask, ...] = ()
    """None at all where the request does not keep them."""

    def __add__(self, later: "OutputTokens") -> "OutputTokens":
        """Append the later tokens to these."""
        return OutputTokens(
            ids=self.ids + later.ids,
            logprobs=self.logprobs + later.logprobs,
            tops=self.tops + later.tops,
            masks=self.masks + later.masks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The tokens that a streamed request has sampled since its last delta."""

    text: str
    tokens: OutputTokens
    weight_version: str
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished request."""

    rid: str
    finish: Finish
    text: str
    """The whole text, trimmed as the request wished."""

    rest: str
    """What no delta has given of it."""

    tokens: OutputTokens
    rest_tokens: OutputTokens
    """What no delta has given of them."""

    prompt_tokens: int
    weight_version: str
    """The engine's at the end."""

    spans: tuple[WeightSpan, ...]
    """Cover every output token, in order."""

    num_retractions: int
    cached_tokens: int | None
    """How many prompt positions came from the prefix cache; None for a request that ended while it waited."""

    experts: NDArray[np.int32] | None
    """[prompt + output - 1, layers, top-k]; None for a request that ended while it waited."""


Update = Delta | Result


def merge_updates(earlier: Delta, later: Update) -> Update:
    """Join two updates into one, for a listener that has fallen behind."""
    text, tokens = earlier.text, earlier.tokens
    if isinstance(later, Delta):
        return replace(later, text=text + later.text, tokens=tokens + later.tokens)
    return replace(later, rest=text + later.rest, rest_tokens=tokens + later.rest_tokens)
