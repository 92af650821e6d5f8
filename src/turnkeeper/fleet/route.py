"""What is known of the route to each engine, and what that means for turns.

Owns when a route is probed and what a turn does about the verdict; `probe` finds it. A route is probed in the
background as soon as its URL serves: at the start, when it comes back, when its router lists other workers; and again
now and then while no verdict is known or a bad one stands, so that a router started anew with the right flag needs
no restart here. A sound route is left alone.

A turn waits a little for a first verdict. One on a route that is known to be unfit is refused with the probe's
explanation and makes no engine call; a verdict of some age is renewed first. No verdict never holds a turn up.

Nothing is probed while the engines are paused: a probe that a pause meets is given up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from turnkeeper.clock import Clock, wait_for_any
from turnkeeper.engines.engine import (
    Engine,
    EngineState,
    EngineStatus,
    GenerateRequest,
    Generation,
    IdsSink,
    RelayReply,
    RelayRequest,
)
from turnkeeper.errors import EngineProtocolError
from turnkeeper.fleet.check_result import UNCHECKED, CheckResult, RouteState
from turnkeeper.fleet.route_check import RouteStatus
from turnkeeper.generation.gate import Gate

logger = logging.getLogger("turnkeeper.engines")

CheckRoute: TypeAlias = Callable[[str], Awaitable[RouteStatus]]
"""Probes one URL, in bounded time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteTimes:
    """How long things take, in seconds."""

    turn_wait_s: float = 5.0
    """A turn waits so long for a verdict."""
    renew_s: float = 5.0
    """A turn has a bad verdict renewed that is older."""
    interval_s: float = 30.0
    """Between probes of a route that is not known to be sound."""


@dataclass(slots=True, kw_only=True)
class Route:
    """One URL."""

    url: str
    result: CheckResult = UNCHECKED
    status: EngineStatus | None = None
    """The newest look at it."""
    checked_at: float | None = None
    """When its newest probe began; None when the next look shall begin one."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Unset while a probe runs."""

    @property
    def is_serving(self) -> bool:
        """Whether it was seen to serve."""
        return self.status is not None and self.status.state is EngineState.SERVING


class RouteChecker:
    """All routes of one process."""

    def __init__(
        self,
        urls: Iterable[str],
        *,
        gate: Gate,
        clock: Clock,
        check: CheckRoute,
        times: RouteTimes | None = None,
        on_result: Callable[[CheckResult], object] = lambda _: None,
    ) -> None:
        """Keep these routes; nothing is asked before `run`.

        Args:
            urls: of the engines or routers.
            gate: no probe runs while it is closed.
            clock: for the waits.
            check: finds a verdict.
            times: None takes the defaults.
            on_result: told of every probe that came to an end.
        """
        self.routes = {url.rstrip("/"): Route(url=url.rstrip("/")) for url in urls}
        for route in self.routes.values():
            route.settled.set()
        self._gate = gate
        self._clock = clock
        self._check = check
        self._times = times or RouteTimes()
        self._on_result = on_result
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Own the probes until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None

    def note_statuses(self, statuses: Iterable[EngineStatus]) -> None:
        """Take in a look at the engines, and probe what has to be."""
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
        """Whether what is known, unless it is good, was found out so long ago."""
        if route.result.state is RouteState.SOUND or route.checked_at is None:
            return False
        return self._clock.now() - route.checked_at >= age_s

    def _begin(self, route: Route) -> None:
        if self._group is not None and self._gate.is_open and route.is_serving and route.settled.is_set():
            route.settled.clear()
            route.checked_at = self._clock.now()
            self._group.create_task(self._probe(route))

    async def _probe(self, route: Route) -> None:
        """Find a verdict, unless a pause comes first."""
        check = asyncio.ensure_future(self._check(route.url))
        pause = asyncio.ensure_future(self._gate.wait_until_closed())
        try:
            await asyncio.wait((check, pause), return_when=asyncio.FIRST_COMPLETED)
            if check.done():
                self._note_result(route, check.result().result)
            else:
                route.checked_at = None  # as soon as the engines go on
        except Exception:  # nothing that a probe meets may end the others
            logger.exception("the probe of %s failed", route.url)
        finally:
            for task in (check, pause):
                task.cancel()
            await asyncio.gather(check, pause, return_exceptions=True)
            route.settled.set()

    def _note_result(self, route: Route, result: CheckResult) -> None:
        before, route.result = route.result, result
        self._on_result(result)
        if result.state is RouteState.UNFIT and result.reason != before.reason:
            logger.warning("%s is not fit for turns: %s", route.url, result.reason)
        elif before.state is RouteState.UNFIT and result.state is RouteState.SOUND:
            logger.info("%s is fit for turns now", route.url)

    async def require_fit(self, url: str) -> None:
        """Let a turn take the route, after a short wait where nothing is known of it.

        Raises:
            EngineProtocolError: the route is unfit, and was found so lately.
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
        """The engine of one of the URLs, whose turns ask here first."""
        return CheckedEngine(engine, lambda: self.require_fit(url))

    def list_problems(self) -> tuple[str, ...]:
        """What is wrong with the routes, a sentence each."""
        unfit = (route for route in self.routes.values() if route.result.state is RouteState.UNFIT)
        return tuple(f"{route.url}: {route.result.reason}" for route in unfit)

    def count(self, state: RouteState) -> int:
        """How many routes are in this state."""
        return sum(route.result.state is state for route in self.routes.values())


def has_changed(before: EngineStatus, after: EngineStatus) -> bool:
    """Whether something else may serve behind a URL than at the look before."""
    return (before.workers, before.is_disaggregated, before.wire) != (after.workers, after.is_disaggregated, after.wire)


class CheckedEngine:
    """An engine whose turns have to be let in."""

    def __init__(self, engine: Engine, require_fit: Callable[[], Awaitable[None]]) -> None:
        """Ask ``admit`` before each turn on ``engine``."""
        self._engine = engine
        self._require_fit = require_fit

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate one reply."""
        await self._require_fit()
        return await self._engine.generate(request, on_ids=on_ids)

    async def relay(self, call: RelayRequest) -> RelayReply:
        """Pass a call through."""
        return await self._engine.relay(call)

    async def abort(self, rid: str) -> None:
        """Give up one attempt."""
        await self._engine.abort(rid)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        """Look at it."""
        return await self._engine.fetch_status()

    async def close(self) -> None:
        """Release what it holds."""
        await self._engine.close()
