"""One request inside the scheduler: its tokens so far, its KV buffer, and the result at its end.

Rules: tokens only grow. A buffer is dropped and made anew as a whole; each span of output tokens that was sampled
over one buffer is an epoch, kept when the engine traces its KV.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from turnkeeper.tiny.model import SequenceKV
from turnkeeper.tiny.scheduler.request import (
    Delta,
    EngineRequest,
    Finish,
    FinishKind,
    OutputTokens,
    Result,
    Update,
    WeightSpan,
)
from turnkeeper.tiny.scheduler.sampler import SampledToken, Sampler
from turnkeeper.tiny.scheduler.text import OutputText, Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Output tokens ``[start, end)``, sampled over one buffer as it then was."""

    start: int
    end: int
    stamps: NDArray[np.int32]
    """[prompt + end - 1]: which weights computed each position."""

    experts: NDArray[np.int32]
    """[prompt + end - 1, layers, top-k]."""


class LiveRequest:
    """One request, from its arrival to its end."""

    def __init__(
        self,
        request: EngineRequest,
        listener: Callable[[Update], None],
        *,
        vocabulary: Vocabulary,
        stop_ids: Collection[int],
        room: int,
        fallback_seed: Sequence[int],
        is_traced: bool = False,
    ) -> None:
        """Take a request in.

        Args:
            request: what is asked.
            listener: called with each delta, if streamed, and with the result.
            vocabulary: gives the text.
            stop_ids: the checkpoint's own stop tokens.
            room: how many tokens the model's positions leave for the output.
            fallback_seed: seeds the draws where the request does not.
            is_traced: whether the KV trace will have a line of it, which tells the masks of a truncating sampler.
        """
        params = request.params
        self.request = request
        self.kv: SequenceKV | None = None
        self.finish: Finish | None = None
        self.num_retractions = 0
        self.epochs: list[Epoch] = []
        self.cached_tokens: int | None = None
        self.sampler = Sampler(
            params,
            fallback_seed=fallback_seed,
            stop_ids={*stop_ids, *params.stop_token_ids},
            keeps_masks=request.has_masks or (is_traced and params.is_truncating),
        )
        self._listener = listener
        self._stop_ids = params.stop_token_ids | (frozenset() if params.ignore_eos else frozenset(stop_ids))
        self._limit = room if params.max_new_tokens is None else min(room, params.max_new_tokens)
        self._ids = np.concatenate([request.prompt_ids, np.zeros(min(self._limit, 256), np.int32)])
        self._sampled: list[SampledToken] = []
        self._stamps: list[int] = []
        self._told = 0
        self._text = OutputText(vocabulary, stop=params.stop, skip_special=params.skip_special_tokens)
        if self._limit == 0:
            self.finish = Finish(kind=FinishKind.LENGTH)

    @property
    def count(self) -> int:
        """The number of tokens sampled so far."""
        return len(self._sampled)

    @property
    def ids(self) -> NDArray[np.int32]:
        """Prompt and output so far."""
        return self._ids[: len(self.request.prompt_ids) + self.count]

    @property
    def is_computed(self) -> bool:
        """True if the buffer holds every position but the last token's, so that all routing rows are there."""
        return self.kv is not None and self.kv.length >= len(self.ids) - 1

    def push(self, sampled: SampledToken, stamp: int, version: str) -> None:
        """Append a sampled token; may finish the request, and tells a streaming listener.

        Reaching the token limit comes before a stop: such a request ends by length, its text untrimmed.
        """
        end = len(self.ids)
        if end == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._ids[end] = sampled.token_id
        self._sampled.append(sampled)
        self._stamps.append(stamp)
        is_full = self.count >= self._limit
        is_stop = sampled.token_id in self._stop_ids
        is_shown = not is_stop or is_full or self.request.params.no_stop_trim
        stop_text = self._text.push(sampled.token_id) if is_shown else None
        if is_full:
            self.finish = Finish(kind=FinishKind.LENGTH)
        elif is_stop or stop_text is not None:
            self.finish = Finish(kind=FinishKind.STOP, matched=sampled.token_id if is_stop else stop_text)
            if not is_stop and not self.request.params.no_stop_trim:
                self._text.cut()
        if self.request.is_streamed and self.finish is None:
            self._tell_delta(version)

    def retract(self) -> None:
        """Drop the KV buffer and keep the tokens."""
        self.close_epoch()
        self.kv = None
        self.num_retractions += 1

    def close_epoch(self) -> None:
        """Keep what the tokens since the last epoch were sampled over."""
        start = self.epochs[-1].end if self.epochs else 0
        if self.kv is not None and self.count > start:
            length = len(self.request.prompt_ids) + self.count - 1
            self.epochs.append(
                Epoch(
                    start=start,
                    end=self.count,
                    stamps=self.kv.stamps[:length].copy(),
                    experts=self.kv.experts[:length].copy(),
                )
            )

    def build_spans(self, versions: Sequence[str]) -> tuple[WeightSpan, ...]:
        """Build the spans of output tokens by weight version; `versions` names each stamp."""
        spans: list[WeightSpan] = []
        for version, group in groupby(versions[stamp] for stamp in self._stamps):
            start = spans[-1].end if spans else 0
            spans.append(WeightSpan(version=version, start=start, end=start + len(list(group))))
        return tuple(spans)

    def end(self, finish: Finish, versions: Sequence[str]) -> Result:
        """End the request and return its result; `tell` gives the result to the listener."""
        self.close_epoch()
        self.finish = finish
        self._text.finish()
        is_computed = self.is_computed
        return Result(
            rid=self.request.rid,
            finish=finish,
            text=self._text.text,
            rest=self._text.take(),
            tokens=_tokens(self._sampled),
            rest_tokens=_tokens(self._sampled[self._told :]),
            prompt_tokens=len(self.request.prompt_ids),
            weight_version=versions[-1],
            spans=self.build_spans(versions),
            num_retractions=self.num_retractions,
            cached_tokens=self.cached_tokens if is_computed else None,
            experts=self.kv.experts[: len(self.ids) - 1].copy() if self.kv is not None and is_computed else None,
        )

    def tell(self, result: Result) -> None:
        """Give the listener the result."""
        self._listener(result)

    def _tell_delta(self, version: str) -> None:
        fresh = _tokens(self._sampled[self._told :])
        self._told = self.count
        delta = Delta(
            text=self._text.take(), tokens=fresh, weight_version=version, cached_tokens=self.cached_tokens or 0
        )
        self._listener(delta)


def _tokens(sampled: Sequence[SampledToken]) -> OutputTokens:
    return OutputTokens(
        ids=tuple(s.token_id for s in sampled),
        logprobs=tuple(s.logprob for s in sampled),
        tops=tuple(s.top for s in sampled),
        masks=tuple(s.mask for s in sampled if s.mask is not None),
    )
