"""The monitor of the engines: whether they are up, whether they are paused, which weights they hold.

Owns the polls in the background and their newest statuses. Tells the gate of pauses; decides nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from turnkeeper.clock import Clock, wait_for_any
from turnkeeper.engines.engine import Engine, EngineState, EngineStatus
from turnkeeper.generation.gate import Gate
from turnkeeper.tasks import Spawn, spawn_alone
from turnkeeper.telemetry import EngineChanged, Publish, ignore_report

logger = logging.getLogger("turnkeeper.engines")

OUT_OF_REACH = (
    "an abandoned call cannot be aborted there, it runs to its end and is only counted (turnkeeper_calls_dropped); "
    "give the engines' own addresses with --backend-url, or a router that lists its workers"
)


class EngineMonitor:
    """Polls the status of all engines at intervals, and more often while something is about to change."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        clock: Clock,
        *,
        interval_s: float = 2.0,
        fast_interval_s: float = 0.25,
        on_poll: Callable[[tuple[EngineStatus, ...]], object] = lambda _: None,
        spawn: Spawn = spawn_alone,
        publish: Publish = ignore_report,
    ) -> None:
        """Monitor the engines behind ``engine``.

        Args:
            engine: asked for the status of each engine.
            gate: notified of every pause that is observed.
            clock: for the waits between polls.
            interval_s: the time between polls while nothing changes.
            fast_interval_s: the time between polls while the engines are paused, or after an abort without a reason.
            on_poll: called with the statuses of every poll, after the gate.
            spawn: starts polls, which continue where a caller is cancelled.
            publish: takes a report of each engine that is seen in another state, or with other weights, than before.
        """
        self._engine = engine
        self._gate = gate
        self._clock = clock
        self._interval_s = interval_s
        self._fast_interval_s = fast_interval_s
        self._on_poll = on_poll
        self._spawn = spawn
        self._publish = publish
        self._reported: dict[str, tuple[EngineState | None, str | None]] = {}
        self._poll_often_until = 0.0
        self._wake = asyncio.Event()
        self._poll: asyncio.Task[tuple[EngineStatus, ...]] | None = None
        self._polls: set[asyncio.Task[tuple[EngineStatus, ...]]] = set()
        self._poll_requests = -1
        self._versions: dict[str, str] = {}
        self._versions_at = -1
        self._first_versions: dict[str, str] = {}
        self._updated: set[str] = set()
        self._out_of_reach: set[str] = set()
        self.statuses: tuple[EngineStatus, ...] = ()
        """The statuses of the newest poll; empty before the first."""

    @property
    def state(self) -> EngineState:
        """The state of all engines together: paused while the gate is closed, and serving before the first poll."""
        if not self._gate.is_open:
            return EngineState.PAUSED
        if self.statuses and all(status.state is EngineState.UNREACHABLE for status in self.statuses):
            return EngineState.UNREACHABLE
        return EngineState.SERVING

    async def poll(self) -> tuple[EngineStatus, ...]:
        """Poll the engines now; callers at the same time share one poll."""
        if self._poll is None or self._poll.done() or self._poll_requests != self._gate.requested_changes:
            self._poll = self._spawn("engine_looks", self._poll_once())
            self._polls.add(self._poll)
            self._poll.add_done_callback(self._polls.discard)
            self._poll_requests = self._gate.requested_changes
        return await asyncio.shield(self._poll)

    async def _poll_once(self) -> tuple[EngineStatus, ...]:
        requested = self._gate.requested_changes
        statuses = await self._engine.fetch_status()
        self.statuses = statuses
        self._report_changes(statuses)
        for status in statuses:
            if not status.can_abort and status.url not in self._out_of_reach:
                self._out_of_reach.add(status.url)
                logger.warning("%s names no workers: %s", status.url, OUT_OF_REACH)
        if requested == self._gate.requested_changes:  # else the trainer has spoken since, and knows better
            for status in statuses:
                self._gate.observe(status.url, is_paused=status.state is EngineState.PAUSED)
                if status.weight_version is not None:
                    self.note_version(status.url, status.weight_version)
        self._on_poll(statuses)
        return statuses

    def _report_changes(self, statuses: tuple[EngineStatus, ...]) -> None:
        for status in statuses:
            state_before, version_before = self._reported.get(status.url, (None, None))
            version = status.weight_version or version_before  # an engine out of reach names none, and keeps its own
            if (status.state, version) == (state_before, version_before):
                continue
            self._reported[status.url] = status.state, version
            self._publish(
                EngineChanged(
                    at=self._clock.unix(),
                    url=status.url,
                    state=str(status.state),
                    state_before=None if state_before is None else str(state_before),
                    weight_version=version,
                    weight_version_before=version_before,
                    error=status.error,
                )
            )

    def note_version(self, url: str, version: str) -> None:
        """Note that a weight version was observed at an engine."""
        if self._versions_at != self._gate.requested_changes:
            self._versions.clear()
            self._versions_at = self._gate.requested_changes
        self._versions[url] = version
        if self._first_versions.setdefault(url, version) != version:
            self._updated.add(url)

    def was_updated(self, url: str) -> bool:
        """Return True if an engine has other weights than when first seen; one that names no version may have."""
        return url in self._updated or (url not in self._first_versions and self._gate.closings > 0)

    async def fetch_versions(self) -> Mapping[str, str]:
        """Return the weight version of each engine; poll first where the trainer paused or continued the engines."""
        if self._versions_at != self._gate.requested_changes:
            await self.poll()
        if self._versions_at != self._gate.requested_changes:  # no engine names a version: do not ask again
            self._versions.clear()
            self._versions_at = self._gate.requested_changes
        return dict(self._versions)

    def find_version(self, url: str) -> str | None:
        """Find the weight version last observed at an engine; None when unknown."""
        return self._versions.get(url) if self._versions_at == self._gate.requested_changes else None

    def poll_often(self, duration_s: float) -> None:
        """Poll the engines at once, and often for this many seconds."""
        self._poll_often_until = max(self._poll_often_until, self._clock.now() + duration_s)
        self._wake.set()

    async def close(self) -> None:
        """Cancel the polls that still run; the monitor is not used afterwards."""
        for poll in self._polls:
            poll.cancel()
        await asyncio.gather(*self._polls, return_exceptions=True)

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            is_fast = self._clock.now() < self._poll_often_until or not self._gate.is_open
            self._wake.clear()
            pause_s = self._fast_interval_s if is_fast else self._interval_s
            await wait_for_any(self._clock, pause_s, self._wake)
