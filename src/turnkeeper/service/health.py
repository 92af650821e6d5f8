"""Builds the bodies of ``GET /health`` and ``GET /ready``.

Health is the state of the server, its engines and background tasks, and what is wrong. Readiness is whether a turn that
is sent now can be served.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from turnkeeper.engines import EngineState, EngineStatus
from turnkeeper.fleet import EngineMonitor
from turnkeeper.fleet.check_result import UNCHECKED
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.drain import Drain
from turnkeeper.service.encoding import EncoderSelector
from turnkeeper.service.sessions import SessionKeeper
from turnkeeper.service.supervisor import Supervisor

OPEN_HEALTH = ("status", "session_server_instance_id", "engine")
"""The members that a caller without an admin key may see on a server with keys."""


UNFIT = "unfit"
"""The state that readiness shows of an engine that is up, and whose route loses what turns need: they are refused."""

ENGINE_STATES = (*map(str, EngineState), UNFIT)
"""The states by which readiness counts engines."""


class NotReady(StrEnum):
    """The reason why a server is not ready."""

    STARTING = "starting"
    """No engine was asked for its state yet."""
    DRAINING = "draining"
    """The server was told to stop."""
    NO_ENGINE = "no_engine"
    """Every engine is out of reach or unfit for turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Which of the processes of a server this one is; each holds sessions of its own."""

    number: int = 0
    """From 0."""
    ports: Sequence[int | None] = (None,)
    """The port of each process, in order; None where it took a free one."""

    def to_json(self) -> JsonObject:
        """Say which process this is, of how many, and where all of them listen."""
        return {"number": self.number, "count": len(self.ports), "ports": list(self.ports)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether a server can take turns."""

    reason: NotReady | None
    """None where it can."""
    engines: Mapping[str, int]
    """How many engines are in each of `ENGINE_STATES`."""

    def to_json(self) -> JsonObject:
        """Build the body of the answer, which names no address."""
        reason = None if self.reason is None else str(self.reason)
        return {"ready": reason is None, "reason": reason, "engines": dict(self.engines)}


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
    keeper: SessionKeeper
    place: WorkerPlace = field(default_factory=WorkerPlace)
    """Which process of the server this is."""

    @property
    def is_draining(self) -> bool:
        """True once the server was told to stop."""
        return self.drain.is_draining

    def decide_readiness(self) -> Readiness:
        """Decide whether a turn that is sent now can be served.

        An engine that its trainer paused counts as up: turns wait for it at the gate, and the pauses of weight updates
        do not take the server out of service.
        """
        statuses = self.monitor.statuses
        counts = Counter(self._classify(status) for status in statuses)
        reason = None
        if self.is_draining:
            reason = NotReady.DRAINING
        elif not statuses:
            reason = NotReady.STARTING
        elif not (counts[EngineState.SERVING] or counts[EngineState.PAUSED]):
            reason = NotReady.NO_ENGINE
        return Readiness(reason=reason, engines={state: counts[state] for state in ENGINE_STATES})

    def _classify(self, status: EngineStatus) -> str:
        route = None if self.routes is None else self.routes.routes.get(status.url)
        is_unfit = route is not None and route.result.is_fatal
        return UNFIT if is_unfit and status.state is not EngineState.UNREACHABLE else str(status.state)

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
            "store": self.keeper.describe(),
            "worker": self.place.to_json(),
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
