"""Builds the body of ``GET /health``: the state of the server, its engines and background tasks, and what is wrong."""

from dataclasses import dataclass

from turnkeeper.engines import EngineStatus
from turnkeeper.fleet import EngineMonitor
from turnkeeper.fleet.check_result import UNCHECKED
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.drain import Drain
from turnkeeper.service.encoding import EncoderSelector
from turnkeeper.service.supervisor import Supervisor

OPEN_HEALTH = ("status", "session_server_instance_id", "engine")
"""The members that a caller without an admin key may see on a server with keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The parts of a server whose health is shown."""

    instance_id: str
    monitor: EngineMonitor
    routes: RouteChecker | None
    """The results of the route checks; None where no route is checked."""
    supervisor: Supervisor
    """Owns the background tasks."""
    encoders: EncoderSelector
    drain: Drain

    @property
    def is_draining(self) -> bool:
        """True once the server was told to stop."""
        return self.drain.is_draining

    def describe(self, *, is_admin: bool = True) -> JsonObject:
        """Build the body of the answer; for others than the admin without addresses and problems."""
        whole: JsonObject = {
            "status": "draining" if self.is_draining else "ok",
            "session_server_instance_id": self.instance_id,
            "engine": str(self.monitor.state),
            "engines": [_describe_engine(status, self.routes) for status in self.monitor.statuses],
            "problems": [
                *(() if self.routes is None else self.routes.list_problems()),
                *self.supervisor.list_problems(),
            ],
            "tasks": self.supervisor.describe(),
            "tokenizer": str(self.encoders.serving),
        }
        return whole if is_admin else {name: whole[name] for name in OPEN_HEALTH}


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
