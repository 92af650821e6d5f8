"""The route checks of a server: when the route to each engine is checked, and what the result means for turns.

`route_check` makes a check by a short generation, the probe. A route is checked in the background as soon as its URL
serves: at the start, when it comes back, and when its router lists other workers. It is checked again at intervals
while its result is unknown or bad, so that a router that was restarted with the right flag needs no restart of this
server. A sound route is not checked again.

A turn waits a little for the first result. A turn on an unfit route is refused with the reason and makes no engine
call; a result of some age is renewed first. A turn is not held up where the result stays unknown.

No route is checked while the engines are paused: a check that runs when a pause begins is cancelled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from turnkeeper.clock import Clock, wait_for_any
from turnkeeper.engines.engine import Engine, EngineState, EngineStatus, GenerateRequest, Generation, IdsSink
from turnkeeper.engines.wrapper import EngineWrapper
from turnkeeper.errors import EngineProtocolError
from turnkeeper.fleet.check_result import UNCHECKED, RouteCheckResult, RouteState
from turnkeeper.fleet.route_check import RouteStatus
from turnkeeper.generation.gate import Gate
from turnkeeper.telemetry import Publish, RouteChanged, ignore_report

logger = logging.getLogger("turnkeeper.engines")

CheckRoute: TypeAlias = Callable[[str], Awaitable[RouteStatus]]
"""Checks the route to one URL, in bounded time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTimes:
    """The times of route checks, in seconds."""

    turn_wait_s: float = 5.0
    """The time that a turn waits for a first result."""
    renew_s: float = 5.0
    """The age from which a turn has a bad result renewed."""
    interval_s: float = 30.0
    """The time between checks of a route that is not known to be sound."""


@dataclass(slots=True, kw_only=True)
class Route:
    """The route to one URL, with its newest status and check result."""

    url: str
    result: RouteCheckResult = UNCHECKED
    status: EngineStatus | None = None
    """The newest status of the engine or router at the URL; None before the first."""
    checked_at: float | None = None
    """The time at which the newest check began; None to check at the next status."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Unset while a check runs."""

    @property
    def is_serving(self) -> bool:
        """True if the newest status is serving."""
        return self.status is not None and self.status.state is EngineState.SERVING


class RouteChecker:
    """Checks the routes to all engines of one process."""

    def __init__(
        self,
        urls: Iterable[str],
        *,
        gate: Gate,
        clock: Clock,
        check: CheckRoute,
        times: RouteTimes | None = None,
        on_result: Callable[[RouteCheckResult], object] = lambda _: None,
        publish: Publish = ignore_report,
    ) -> None:
        """Check these routes; nothing is called before `run`.

        Args:
            urls: the addresses of engines or routers.
            gate: no check runs while it is closed.
            clock: for the waits.
            check: checks one route.
            times: None takes the defaults.
            on_result: called with the result of every check that was not cancelled.
            publish: takes a report of each route whose check came to another result than the one before.
        """
        self.routes = {url.rstrip("/"): Route(url=url.rstrip("/")) for url in urls}
        for route in self.routes.values():
            route.settled.set()
        self._gate = gate
        self._clock = clock
        self._check = check
        self._times = times or RouteTimes()
        self._on_result = on_result
        self._publish = publish
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the tasks of the checks until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def note_statuses(self, statuses: Iterable[EngineStatus]) -> None:
        """Take the statuses of a poll, and start the checks that they make necessary."""
        for status in statuses:
            route = self.routes.get(status.url)
            if route is None:
                continue
            before, route.status = route.status, status
            if status.state is EngineState.UNREACHABLE:
                route.result, route.checked_at = UNCHECKED, None
            elif before is not None and has_changed(before, status):
                route.checked_at = None
            if route.checked_at is None or self._is_old(route, self._times.interval_s):
                self._begin(route)

    def _is_old(self, route: Route, age_s: float) -> bool:
        """Return True if a route is not sound and its newest check began at least so many seconds ago."""
        if route.result.state is RouteState.SOUND or route.checked_at is None:
            return False
        return self._clock.now() - route.checked_at >= age_s

    def _begin(self, route: Route) -> None:
        if self._group is not None and self._gate.is_open and route.is_serving and route.settled.is_set():
            route.settled.clear()
            route.checked_at = self._clock.now()
            self._group.create_task(self._probe(route))

    async def _probe(self, route: Route) -> None:
        """Check a route, unless a pause begins first."""
        check = asyncio.ensure_future(self._check(route.url))
        pause = asyncio.ensure_future(self._gate.wait_until_closed())
        try:
            await asyncio.wait((check, pause), return_when=asyncio.FIRST_COMPLETED)
            if check.done():
                self._note_result(route, check.result().result)
            else:
                route.checked_at = None  # check again as soon as the engines continue
        except Exception:  # a failure of one check may not end the others
            logger.exception("the probe of %s failed", route.url)
        finally:
            for task in (check, pause):
                task.cancel()
            await asyncio.gather(check, pause, return_exceptions=True)
            route.settled.set()

    def _note_result(self, route: Route, result: RouteCheckResult) -> None:
        before, route.result = route.result, result
        self._on_result(result)
        if (result.state, result.reason) != (before.state, before.reason):
            reason = result.reason if result.state is RouteState.UNFIT else ""
            self._publish(RouteChanged(at=self._clock.unix(), url=route.url, state=str(result.state), reason=reason))

    async def require_fit(self, url: str) -> None:
        """Refuse a turn on an unfit route, after a short wait where the route was not checked yet.

        Raises:
            EngineProtocolError: the newest check found the route unfit.
        """
        route = self.routes[url]
        if route.result.state is RouteState.SOUND:
            return
        if route.checked_at is None or (route.result.is_fatal and self._is_old(route, self._times.renew_s)):
            self._begin(route)
        if not await wait_for_any(self._clock, self._times.turn_wait_s, route.settled):
            return
        if route.result.is_fatal:
            raise EngineProtocolError(
                f"the route to {url} is not fit for turns: {route.result.reason}", url=url, accepted=False
            )

    def wrap(self, url: str, engine: Engine) -> Engine:
        """Wrap the engine of a URL, so that its turns are refused while the route is unfit."""
        return CheckedEngine(engine, lambda: self.require_fit(url))

    def list_problems(self) -> tuple[str, ...]:
        """List what is wrong with unfit routes, a sentence for each."""
        unfit = (route for route in self.routes.values() if route.result.state is RouteState.UNFIT)
        return tuple(f"{route.url}: {route.result.reason}" for route in unfit)

    def count(self, state: RouteState) -> int:
        """Count the routes in this state."""
        return sum(route.result.state is state for route in self.routes.values())


def has_changed(before: EngineStatus, after: EngineStatus) -> bool:
    """Return True if another server may be behind a URL than at the status before."""
    return (before.workers, before.is_disaggregated, before.wire) != (after.workers, after.is_disaggregated, after.wire)


class CheckedEngine(EngineWrapper):
    """An engine whose turns are refused while its route is unfit."""

    def __init__(self, engine: Engine, require_fit: Callable[[], Awaitable[None]]) -> None:
        """Call ``require_fit`` before each turn on ``engine``."""
        super().__init__(engine)
        self._require_fit = require_fit

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        await self._require_fit()
        return await self._engine.generate(request, on_ids=on_ids)
