"""The gauges of a server: each is read from the part that knows its value whenever metrics are asked for."""

from functools import partial

from turnkeeper.engines import EngineState
from turnkeeper.fleet import EngineMonitor
from turnkeeper.fleet.check_result import RouteState
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.metrics import Metrics
from turnkeeper.service.drain import Drain
from turnkeeper.service.requests import RequestsInFlight
from turnkeeper.service.sessions import MemoryAccount, Registry


def register_gauges(
    metrics: Metrics,
    *,
    registry: Registry,
    account: MemoryAccount,
    requests: RequestsInFlight,
    drain: Drain,
    monitor: EngineMonitor,
    routes: RouteChecker | None,
) -> None:
    """Register every gauge of the sessions, the engines and the routes to them."""
    metrics.register_gauge("turnkeeper_sessions", lambda: len(registry))
    metrics.register_gauge("turnkeeper_session_bytes", lambda: account.used_bytes)
    metrics.register_gauge("turnkeeper_spilled_bytes", lambda: account.spilled_bytes)
    metrics.register_gauge("turnkeeper_requests_in_flight", lambda: len(requests))
    metrics.register_gauge("turnkeeper_turns_in_flight", registry.count_turns)
    metrics.register_gauge("turnkeeper_draining", lambda: drain.is_draining)
    for state in EngineState:
        metrics.register_gauge("turnkeeper_engine_state", partial(_is_state, monitor, state), state=str(state))
    if routes is not None:
        for verdict in RouteState:
            metrics.register_gauge("turnkeeper_engine_routes", partial(routes.count, verdict), verdict=str(verdict))


def _is_state(monitor: EngineMonitor, state: EngineState) -> float:
    return float(monitor.state is state)
