"""The life of a server's parts: background loops from the start on, the drain, and the end."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from turnkeeper.clock import Clock
from turnkeeper.metrics import Metrics
from turnkeeper.service.drain import Drain
from turnkeeper.service.requests import RequestsInFlight
from turnkeeper.service.sessions import Registry
from turnkeeper.service.sessions.closing import give_up_turns
from turnkeeper.service.supervisor import Supervisor
from turnkeeper.telemetry import SessionEndReason

LOOP_DELAY_INTERVAL_S = 0.1
"""How often the event loop's delay is measured."""

Loop: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Runs in the background until it is cancelled."""


class Lifecycle:
    """Starts, drains and closes the parts of one server."""

    def __init__(
        self,
        *,
        supervisor: Supervisor,
        registry: Registry,
        requests: RequestsInFlight,
        drain: Drain,
        drain_timeout_s: float,
        outlive: bool = False,
        loops: Mapping[str, Loop],
        closers: Sequence[Callable[[], Awaitable[object]]],
    ) -> None:
        """Start nothing yet.

        Args:
            supervisor: runs the loops.
            registry: the sessions, whose turns a drain waits for.
            requests: what a drain waits for as well.
            drain: the state of the drain.
            drain_timeout_s: the longest that a drain takes.
            outlive: True where sessions outlive the process, so that a drain does not wait for their collects.
            loops: what runs in the background, by the name that health shows, in the order in which it starts.
            closers: what is called at the end, one behind the other.
        """
        self._supervisor = supervisor
        self._registry = registry
        self._requests = requests
        self._drain = drain
        self._drain_timeout_s = drain_timeout_s
        self._outlive = outlive
        self._loops = loops
        self._closers = closers

    def start(self) -> None:
        """Begin every background loop."""
        for name, loop in self._loops.items():
            self._supervisor.start(name, loop)

    async def drain(self) -> None:
        """Take no new sessions and turns; wait until nothing is left to answer and to collect, or the time is up."""
        registry = self._registry
        count_held = partial(registry.count_held, outlive=self._outlive)
        await self._drain.run(
            timeout_s=self._drain_timeout_s,
            is_over=lambda: not len(self._requests) and not count_held(),
            describe=lambda: f"sessions: {count_held()}, turns in flight: {registry.count_turns()}",
        )

    def end_turns(self) -> None:
        """Give up every turn in flight, for the server stops now; one that is being recorded is recorded."""
        for entry in self._registry:
            give_up_turns(entry, SessionEndReason.SERVER_STOPS)

    async def close(self) -> None:
        """Cancel the loops and close every part."""
        await self._supervisor.close()
        for close in self._closers:
            await close()


async def measure_loop_delay(clock: Clock, metrics: Metrics) -> None:
    """Measure for ever by how much the event loop wakes a task too late."""
    while True:
        due = clock.now() + LOOP_DELAY_INTERVAL_S
        await clock.sleep(LOOP_DELAY_INTERVAL_S)
        delay_s = max(0.0, clock.now() - due)
        metrics.set("turnkeeper_event_loop_delay_seconds", delay_s)
        metrics.observe("turnkeeper_event_loop_lag_seconds", delay_s)
