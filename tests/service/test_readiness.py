"""Whether a server can take turns, as ``GET /ready`` says it.

1. It can while one engine is up: serving, or paused by its trainer, since turns wait for that one.
2. An engine out of reach, and one whose route loses what turns need, serve nothing.
3. It cannot before an engine was asked, and while it drains.
4. The answer counts engines, and names none.
"""

from dataclasses import replace

import pytest

from servicekit import Kit, build_kit
from turnkeeper.engines import EngineState, EngineStatus
from turnkeeper.fleet.check_result import RouteCheckResult, RouteState
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.fleet.route_check import RouteStatus
from turnkeeper.generation import Gate
from turnkeeper.service.health import Health, NotReady
from turnkeeper.testing import ManualClock

SERVING, PAUSED, UNREACHABLE = EngineState
FATAL = RouteCheckResult(state=RouteState.UNFIT, reason="a router drops rows", is_fatal=True)
MILD = RouteCheckResult(state=RouteState.UNFIT, reason="the engine was busy")


async def refuse_check(url: str) -> RouteStatus:
    raise AssertionError(f"{url} was checked")


def build_health(*engines: EngineState | tuple[EngineState, RouteCheckResult]) -> Health:
    """The health of a server with engines in these states; beside a state may stand what its route check found."""
    kit = build_kit()
    rows = [each if isinstance(each, tuple) else (each, None) for each in engines]
    urls = [f"http://engine-{number}:30000" for number in range(len(rows))]
    routes = RouteChecker(urls, gate=Gate(ManualClock()), clock=ManualClock(), check=refuse_check)
    for url, (_, result) in zip(urls, rows, strict=True):
        routes.routes[url].result = result or routes.routes[url].result
    kit.parts.monitor.statuses = tuple(
        EngineStatus(url=url, state=state) for url, (state, _) in zip(urls, rows, strict=True)
    )
    return replace(kit.backend.health, routes=routes)


@pytest.mark.parametrize(
    ("engines", "reason", "counts"),
    [
        ((), NotReady.STARTING, {}),
        ((SERVING,), None, {"serving": 1}),
        ((PAUSED,), None, {"paused": 1}),
        ((UNREACHABLE,), NotReady.NO_ENGINE, {"unreachable": 1}),
        ((UNREACHABLE, SERVING), None, {"unreachable": 1, "serving": 1}),
        ((UNREACHABLE, PAUSED), None, {"unreachable": 1, "paused": 1}),
        ((UNREACHABLE, UNREACHABLE), NotReady.NO_ENGINE, {"unreachable": 2}),
        (((SERVING, FATAL),), NotReady.NO_ENGINE, {"unfit": 1}),
        (((PAUSED, FATAL), UNREACHABLE), NotReady.NO_ENGINE, {"unfit": 1, "unreachable": 1}),
        (((SERVING, FATAL), SERVING), None, {"unfit": 1, "serving": 1}),
        (((SERVING, MILD),), None, {"serving": 1}),
    ],
)
def test_a_server_is_ready_while_an_engine_is_up(
    engines: tuple[EngineState, ...], reason: NotReady | None, counts: dict[str, int]
) -> None:
    body = build_health(*engines).decide_readiness().to_json()
    assert body == {
        "ready": reason is None,
        "reason": reason,
        "engines": {"serving": 0, "paused": 0, "unreachable": 0, "unfit": 0, **counts},
    }


def test_a_server_without_route_checks_goes_by_the_states_alone() -> None:
    health = replace(build_health((SERVING, FATAL)), routes=None)
    assert health.decide_readiness().reason is None


async def ask(kit: Kit) -> NotReady | None:
    await kit.parts.monitor.poll()
    return kit.backend.health.decide_readiness().reason


async def test_a_server_is_not_ready_while_its_engine_is_away() -> None:
    kit = build_kit()
    assert kit.backend.health.decide_readiness().reason is NotReady.STARTING
    assert await ask(kit) is None
    kit.engine.state = UNREACHABLE
    assert await ask(kit) is NotReady.NO_ENGINE
    kit.engine.state = SERVING
    assert await ask(kit) is None


async def test_the_pause_of_a_weight_update_leaves_it_ready() -> None:
    kit = build_kit()
    await kit.backend.control.pause("in_place", forward=False)
    assert await ask(kit) is None
    kit.engine.state = PAUSED
    assert await ask(kit) is None


async def test_a_server_that_drains_is_not_ready() -> None:
    kit = build_kit()
    assert await ask(kit) is None
    await kit.backend.lifecycle.drain()
    assert await ask(kit) is NotReady.DRAINING
