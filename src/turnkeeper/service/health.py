"""What ``GET /health`` says: how the server, its engines and background tasks are, and what is wrong. Pure."""

from collections.abc import Iterable

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.engines import EngineState, EngineStatus
from turnkeeper.fleet.check_result import UNCHECKED
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.supervisor import Supervisor


def describe_health(
    config: ResolvedConfig,
    state: EngineState,
    statuses: Iterable[EngineStatus],
    routes: RouteChecker | None,
    supervisor: Supervisor,
    *,
    is_draining: bool,
) -> JsonObject:
    """The body of the answer.

    Args:
        config: the options.
        state: of all engines in one word.
        statuses: the newest look at them; none before the first.
        routes: what is known of the routes; None where none is probed.
        supervisor: owns the background tasks.
        is_draining: whether the server was told to stop.
    """
    return {
        "status": "draining" if is_draining else "ok",
        "session_server_instance_id": config.instance_id,
        "engine": str(state),
        "engines": [_describe_engine(status, routes) for status in statuses],
        "problems": [*(() if routes is None else routes.list_problems()), *supervisor.list_problems()],
        "tasks": supervisor.describe(),
    }


def _describe_engine(status: EngineStatus, routes: RouteChecker | None) -> JsonObject:
    route = None if routes is None else routes.routes.get(status.url)
    result = UNCHECKED if route is None else route.result
    return {
        "url": status.url,
        "state": str(status.state),
        "wire": None if status.wire is None else str(status.wire),
        "route": str(result.state),
        "error": status.error or result.reason or None,
    }
