"""Continuous batching: which requests compute what in each step, and what a pause does to them.

::

    submit --> waiting --admit--> running --finish--> result
                  ^                  |
                  +-----retract------+

One step is one forward: every running request computes what it has not computed yet, one token when it decodes, a
piece of its prompt (or of all its tokens, after a retraction) when it prefills. Whoever has then computed all its
tokens samples one. Weights and pauses change between steps only.

Synchronous, no clock, not safe for threads: one thread owns a scheduler.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from turnkeeper.choices import PauseMode
from turnkeeper.errors import ConfigError
from turnkeeper.tiny.model import Chunk, PrefixCache, TinyModel
from turnkeeper.tiny.scheduler.live import LiveRequest
from turnkeeper.tiny.scheduler.request import EngineRequest, Finish, FinishKind, Result, Update
from turnkeeper.tiny.scheduler.sampler import sample
from turnkeeper.tiny.scheduler.text import Vocabulary

PREFILL_TOKENS = 512
"""How many tokens of prompts one step computes at most, so that a long prompt does not hold up who decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightStamp:
    """The weights that a stamp in a KV buffer stands for."""

    version: str
    """The label at the time, as clients see it."""

    source: str
    """The checkpoint folder the weights were read from."""


Listener = Callable[[Update], None]
TraceWriter = Callable[[LiveRequest, Result, list[WeightStamp]], None]


class Scheduler:
    """The requests in the engine, the weights they run on, and the prefix cache."""

    def __init__(
        self,
        model: TinyModel,
        vocabulary: Vocabulary,
        *,
        stop_ids: Collection[int],
        max_batch: int = 32,
        seed: int = 0,
        stamp: WeightStamp,
        trace: TraceWriter | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
    ) -> None:
        """Start idle.

        Args:
            model: the weights to begin with.
            vocabulary: gives tokens their text.
            stop_ids: the checkpoint's own stop tokens.
            max_batch: how many requests run at once.
            seed: seeds the draws of requests that bring none, together with their order of arrival.
            stamp: what the first weights are called and where they came from.
            trace: called with each finished request.
            prefill_tokens: see `PREFILL_TOKENS`.
        """
        self._model = model
        self._vocabulary = vocabulary
        self._stop_ids = frozenset(stop_ids)
        self._max_batch = max_batch
        self._seed = seed
        self._trace = trace
        self.prefill_tokens = prefill_tokens
        self._stamps = [stamp]
        self._cache = PrefixCache()
        self._waiting: deque[LiveRequest] = deque()
        self._running: list[LiveRequest] = []
        self._arrivals = 0
        self._pause: PauseMode | None = None
        self._is_asleep = False

    @property
    def version(self) -> str:
        """The weight version, as clients see it."""
        return self._stamps[-1].version

    @property
    def model_source(self) -> str:
        """The folder the weights came from."""
        return self._stamps[-1].source

    @property
    def pause_mode(self) -> PauseMode | None:
        """The mode in which generation is paused; None while it runs."""
        return self._pause

    @property
    def is_idle(self) -> bool:
        """True if no request is in the engine."""
        return not self._running and not self._waiting

    @property
    def has_work(self) -> bool:
        """True if a step would compute anything."""
        return self._pause is None and not self._is_asleep and not self.is_idle

    @property
    def running_count(self) -> int:
        """The number of requests that hold a KV buffer."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for a place in the batch, or for the end of a pause."""
        return len(self._waiting)

    def submit(self, request: EngineRequest, listener: Listener) -> None:
        """Queue a request; its listener hears its deltas, if it is streamed, and always one result."""
        self._arrivals += not request.is_probe
        live = LiveRequest(
            request,
            listener,
            vocabulary=self._vocabulary,
            stop_ids=self._stop_ids,
            room=self._model.shape.max_position_embeddings - len(request.prompt_ids),
            fallback_seed=(self._seed, self._arrivals),
            is_traced=self._trace is not None,
        )
        self._waiting.append(live)

    def step(self) -> None:
        """Compute one forward for all that run, and let the finished go."""
        self._admit()
        chunks: dict[int, Chunk] = {}
        budget = self.prefill_tokens
        for index, live in enumerate(self._running):
            assert live.kv is not None, "who runs has a buffer"
            missing = live.ids[live.kv.length :]
            if len(missing) > 1:
                missing = missing[:budget]
                budget -= len(missing)
            if len(missing):
                chunks[index] = Chunk(ids=missing, kv=live.kv)
        if not chunks:
            return
        logits = self._model.forward(list(chunks.values()), stamp=len(self._stamps) - 1).logits
        rows = [(row, self._running[index]) for row, index in enumerate(chunks)]
        ready = [(row, live) for row, live in rows if live.kv is not None and live.kv.length == len(live.ids)]
        if not ready:
            return
        drawn = sample(logits[[row for row, _ in ready]], [live.sampler for _, live in ready])
        for (_, live), sampled in zip(ready, drawn, strict=True):
            live.push(sampled, len(self._stamps) - 1, self.version)
        for _, live in ready:
            if live.finish is not None:
                self._running.remove(live)
                self._end(live, live.finish)

    def pause(self, mode: PauseMode) -> None:
        """Stop stepping and do to the requests in the engine what the mode says."""
        self._pause = mode
        if mode is PauseMode.ABORT:
            self.abort_all("the engine was paused")
        elif mode is PauseMode.RETRACT:
            for live in reversed(self._running):
                live.retract()
                self._waiting.appendleft(live)
            self._running.clear()

    def resume(self) -> None:
        """Step again."""
        self._pause = None

    def abort(self, rid: str, message: str = "aborted by request") -> None:
        """End the request with this id, if it is here."""
        self._abort_where(lambda live: live.request.rid == rid, message)

    def abort_all(self, message: str = "aborted by request") -> None:
        """End every request."""
        self._abort_where(lambda live: True, message)

    def flush(self) -> bool:
        """Empty the prefix cache, unless a request runs; waiting ones hold no KV and do not count."""
        if self._running:
            return False
        self._cache.flush()
        return True

    def set_model(self, model: TinyModel, stamp: WeightStamp) -> None:
        """Compute with other weights from the next step on. What is in buffers and cache stays.

        Raises:
            ConfigError: the weights are of another shape.
        """
        if model.shape != self._model.shape:
            raise ConfigError(f"the engine runs {self._model.shape}, the new weights are {model.shape}")
        self._model = model
        self._stamps.append(stamp)

    def set_version(self, version: str) -> None:
        """Call the same weights by another version from the next step on."""
        self._stamps.append(WeightStamp(version=version, source=self.model_source))

    def sleep(self) -> bool:
        """Drop the prefix cache and stop stepping until `wake`; refused while any request is here."""
        if not self.is_idle:
            return False
        self._cache.flush()
        self._is_asleep = True
        return True

    def wake(self) -> None:
        """End the sleep."""
        self._is_asleep = False

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_batch:
            live = self._waiting.popleft()
            if live.finish is not None:  # it asked for no token
                self._end(live, live.finish)
                continue
            hit = self._cache.find(live.ids, live.request.cache_salt)
            live.kv = self._model.new_kv(len(live.ids) + 64)
            if hit is not None:
                live.kv.copy_prefix(hit.kv, hit.length)
            if live.cached_tokens is None:
                live.cached_tokens = hit.length if hit else 0
            self._running.append(live)

    def _abort_where(self, is_meant: Callable[[LiveRequest], bool], message: str) -> None:
        meant = [live for live in (*self._running, *self._waiting) if is_meant(live)]
        self._running = [live for live in self._running if live not in meant]
        self._waiting = deque(live for live in self._waiting if live not in meant)
        for live in meant:
            self._end(live, Finish(kind=FinishKind.ABORT, message=message))

    def _end(self, live: LiveRequest, finish: Finish) -> None:
        """Who hears the result finds its line in the trace, and its tokens in the prefix cache."""
        result = live.end(finish, [stamp.version for stamp in self._stamps])
        if self._trace is not None and not live.request.is_probe:
            self._trace(live, result, self._stamps)
        if live.kv is not None:
            self._cache.store(live.ids, live.kv, live.request.cache_salt)
            live.kv = None
        live.tell(result)
