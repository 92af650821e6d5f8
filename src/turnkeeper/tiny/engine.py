"""The engine as an asynchronous object: a scheduler in a thread of its own, so that the event loop stays free.

The thread owns the scheduler. Everything else reaches it by commands, which run between two steps in the order they
were posted; what requests are told comes back through the event loop. Weights are read from disk outside both.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from tokenizers import Tokenizer

from turnkeeper.errors import ConfigError, RequestError
from turnkeeper.tiny.checkpoint import read_weights
from turnkeeper.tiny.codec import ChatCodec
from turnkeeper.tiny.model import TinyModel
from turnkeeper.tiny.scheduler import (
    Delta,
    EngineRequest,
    Result,
    Scheduler,
    Update,
    Vocabulary,
    WeightStamp,
    merge_updates,
)
from turnkeeper.tiny.scheduler.trace import KvTrace

DEFAULT_VERSION = "default"
"""The weight version until someone gives one."""

_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The options of an engine."""

    checkpoint: Path
    """The folder with tokenizer, template, config and weights."""

    seed: int = 0
    """Seeds the draws of requests that bring no seed, together with their order of arrival."""

    max_batch: int = 32
    """How many requests run at once; the others wait."""

    has_routed_experts: bool = True
    """Whether replies carry routing rows when a request asks; without, they lack them silently, as SGLang's do."""

    kv_trace: Path | None = None
    """Where to write the KV trace; see `turnkeeper.tiny.scheduler.trace`."""

    health_timeout_s: float = 20
    """How long the health check waits for a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """The result of a control call."""

    is_done: bool
    message: str


class TinyEngine:
    """One embedded engine. `start` it inside an event loop, and `stop` it there."""

    def __init__(self, options: EngineOptions) -> None:
        """Read the checkpoint.

        Raises:
            ConfigError: a file of the checkpoint is missing or malformed.
        """
        shape, weights = read_weights(options.checkpoint)
        self.options = options
        self.shape = shape
        self.codec = ChatCodec(options.checkpoint)
        self.vocabulary = Vocabulary(_read_tokenizer(options.checkpoint))
        self._trace = KvTrace(options.kv_trace) if options.kv_trace else None
        self._scheduler = Scheduler(
            TinyModel(shape, weights),
            self.vocabulary,
            stop_ids=[shape.eos_token_id],
            max_batch=options.max_batch,
            seed=options.seed,
            stamp=WeightStamp(version=DEFAULT_VERSION, source=str(options.checkpoint)),
            trace=self._trace,
        )
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._step_waiters: list[asyncio.Future[None]] = []
        self._rids: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def start(self) -> None:
        """Start the engine's thread, from the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name="turnkeeper-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Abort every request, end the thread, close the trace."""
        if self._thread is None:
            return
        await self.call(lambda scheduler: scheduler.abort_all("the engine stops"))
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)
        self._thread = None
        if self._trace is not None:
            self._trace.close()

    def require_free(self, rid: str) -> None:
        """Refuse a request id that is in use, since an abort by that id would be ambiguous.

        Raises:
            RequestError: a request with this rid is here already.
        """
        if rid in self._rids:
            raise RequestError(f"a request with rid {rid!r} is running already", param="rid")

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Update]:
        """Run a request: yield its deltas, if it is streamed, then its result; closing the generator aborts it.

        A caller that takes deltas more slowly than they are sampled gets fewer and larger ones.

        Raises:
            RequestError: as `require_free`.
        """
        self.require_free(request.rid)
        loop = self._get_loop()
        updates: asyncio.Queue[Update] = asyncio.Queue()

        def tell(update: Update) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, update)

        self._rids.add(request.rid)
        self._commands.put(lambda: self._scheduler.submit(request, tell))
        is_over = False
        try:
            while not is_over:
                update = await updates.get()
                while isinstance(update, Delta) and not updates.empty():
                    update = merge_updates(update, updates.get_nowait())
                is_over = isinstance(update, Result)
                yield update
        finally:
            self._rids.discard(request.rid)
            if not is_over:
                self._commands.put(lambda: self._scheduler.abort(request.rid, "the client went away"))

    async def complete(self, request: EngineRequest) -> Result:
        """Run a request that is not streamed."""
        async with contextlib.aclosing(self.generate(request)) as updates:
            async for update in updates:
                if isinstance(update, Result):
                    return update
        raise AssertionError("a request always has a result")

    async def call(self, command: Callable[[Scheduler], _Value]) -> _Value:
        """Run a command on the scheduler between two steps; what it raises is raised here."""
        future: asyncio.Future[_Value] = self._get_loop().create_future()

        def run() -> None:
            try:
                value = command(self._scheduler)
            except BaseException as error:
                self._settle(future, lambda error=error: future.set_exception(error))
            else:
                self._settle(future, lambda: future.set_result(value))

        self._commands.put(run)
        return await future

    async def wait_for_step(self) -> None:
        """Wait for the end of the scheduler's next step."""
        future: asyncio.Future[None] = self._get_loop().create_future()
        self._commands.put(lambda: self._step_waiters.append(future))
        await future

    async def update_weights(
        self, folder: Path, *, version: str | None, is_flushing: bool, is_aborting: bool
    ) -> ControlResult:
        """Change the weights between two steps, then flush the prefix cache.

        Args:
            folder: the checkpoint to read.
            version: the new weight version; None keeps the label.
            is_flushing: whether to flush. Under running requests that fails, and so does the call, although the
                weights have changed.
            is_aborting: whether every request is aborted first.
        """
        try:
            shape, weights = await asyncio.to_thread(read_weights, folder)
            model = TinyModel(shape, weights)
        except ConfigError as error:
            return ControlResult(is_done=False, message=f"the weights were not changed: {error}")

        def change(scheduler: Scheduler) -> ControlResult:
            if is_aborting:
                scheduler.abort_all("the weights were updated")
            stamp = WeightStamp(version=scheduler.version if version is None else version, source=str(folder))
            try:
                scheduler.set_model(model, stamp)
            except ConfigError as error:
                return ControlResult(is_done=False, message=f"the weights were not changed: {error}")
            if is_flushing and not scheduler.flush():
                return ControlResult(is_done=False, message="the weights were changed, but the cache was not flushed")
            return ControlResult(is_done=True, message="the weights were changed")

        return await self.call(change)

    async def relabel(self, version: str, *, is_aborting: bool) -> None:
        """Call the same weights by another version from the next step on; perhaps abort everything first."""

        def change(scheduler: Scheduler) -> None:
            if is_aborting:
                scheduler.abort_all("the weight version was changed")
            scheduler.set_version(version)

        await self.call(change)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._thread is None:
            raise RuntimeError("the engine is not started")
        return self._loop

    def _settle(self, future: asyncio.Future[_Value], settle: Callable[[], None]) -> None:
        def if_awaited() -> None:
            if not future.done():
                settle()

        self._get_loop().call_soon_threadsafe(if_awaited)

    def _work(self) -> None:
        """Run the thread: commands first, then a step while there is work; it sleeps while there is neither."""
        while True:
            if self._commands.empty() and self._scheduler.has_work:
                self._step()
                continue
            command = self._commands.get()
            if command is None:
                return
            command()

    def _step(self) -> None:
        try:
            self._scheduler.step()
        except Exception as error:
            _log.exception("a step of the embedded engine failed")
            self._scheduler.abort_all(f"the engine failed: {error!r}")
        for future in self._step_waiters:
            self._settle(future, lambda future=future: future.set_result(None))
        self._step_waiters.clear()


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_buffer(path.read_bytes())
    except Exception as error:  # the library raises bare exceptions
        raise ConfigError(f"cannot read {path}: {error}") from error
