"""What ``GET /health`` says: how the server, its engines and background tasks are, and what is wrong. Pure."""

from collections.abc import Iterable

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.engines import EngineReport, EngineState
from turnkeeper.fleet.route import RouteKeeper
from turnkeeper.fleet.verdict import UNCHECKED
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.supervisor import Supervisor


def describe_health(
    config: ResolvedConfig,
    state: EngineState,
    reports: Iterable[EngineReport],
    routes: RouteKeeper | None,
    supervisor: Supervisor,
    *,
    is_draining: bool,
) -> JsonObject:
    """The body of the answer.

    Args:
        config: the options.
        state: of all engines in one word.
        reports: the newest look at them; none before the first.
        routes: what is known of the routes; None where none is probed.
        supervisor: owns the background tasks.
        is_draining: whether the server was told to stop.
    """
    return {
        "status": "draining" if is_draining else "ok",
        "session_server_instance_id": config.instance_id,
        "engine": str(state),
        "engines": [_describe_engine(report, routes) for report in reports],
        "problems": [*(() if routes is None else routes.list_problems()), *supervisor.list_problems()],
        "tasks": supervisor.describe(),
    }


def _describe_engine(report: EngineReport, routes: RouteKeeper | None) -> JsonObject:
    route = None if routes is None else routes.routes.get(report.url)
    verdict = UNCHECKED if route is None else route.verdict
    return {
        "url": report.url,
        "state": str(report.state),
        "wire": None if report.wire is None else str(report.wire),
        "route": str(verdict.state),
        "error": report.error or verdict.reason or None,
    }
