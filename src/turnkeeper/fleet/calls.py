"""The engine calls that run right now, by their request id, and a report of each that ends."""

from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from turnkeeper.clock import Clock
from turnkeeper.engines.engine import Engine, GenerateRequest, Generation, IdsSink
from turnkeeper.engines.wrapper import EngineWrapper
from turnkeeper.telemetry import EngineCallEnded, NoTracing, Publish, Tracing, ignore_report


class EngineCalls:
    """Knows at which engine each running call is. A call that waits for its connection counts as running."""

    def __init__(self, clock: Clock, *, publish: Publish = ignore_report, tracing: Tracing | None = None) -> None:
        """Report each call that ends.

        Args:
            clock: measures the calls.
            publish: takes the reports.
            tracing: follows the calls; None follows none.
        """
        self._tracing = tracing or NoTracing()
        self._clock = clock
        self._publish = publish
        self._urls: dict[str, str] = {}

    def find_url(self, rid: str) -> str:
        """Find the engine of a running call; empty where no such call runs."""
        return self._urls.get(rid, "")

    def count(self) -> Mapping[str, int]:
        """Count the running calls of each engine that has any."""
        return Counter(self._urls.values())

    def wrap(self, url: str, engine: Engine) -> Engine:
        """Wrap the engine of a URL, so that its calls are known while they run."""
        return WatchedEngine(engine, url, self)

    def trace(self, request: GenerateRequest, url: str) -> GenerateRequest:
        """Follow a call that begins, and return its request with the tracing headers that the engine is sent."""
        trace = self._tracing.begin_call(request.rid, url, self._clock.unix(), request.trace)
        return request if trace is request.trace else replace(request, trace=trace)

    @contextmanager
    def watch(self, rid: str, url: str) -> Generator[None]:
        """Hold a call as running, and report how it ended."""
        began, error = self._clock.now(), None
        self._urls[rid] = url
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._urls.pop(rid, None)
            failure = error if isinstance(error, Exception) else None
            self._publish(
                EngineCallEnded(
                    at=self._clock.unix(),
                    url=url,
                    seconds=self._clock.now() - began,
                    error=failure,
                    is_cancelled=error is not None and failure is None,
                    rid=rid,
                )
            )


class WatchedEngine(EngineWrapper):
    """An engine whose running calls are known."""

    def __init__(self, engine: Engine, url: str, calls: EngineCalls) -> None:
        """Watch the calls of the engine at this URL."""
        super().__init__(engine)
        self._url = url
        self._calls = calls

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        traced = self._calls.trace(request, self._url)
        with self._calls.watch(request.rid, self._url):
            return await self._engine.generate(traced, on_ids=on_ids)
