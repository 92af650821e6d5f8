"""What a trainer says about the engines.

1. A forwarded pause that fails on one engine lets those that it paused go on; a pause that was there before stays.
2. Control calls go to the workers behind a router, never to the router, and are those of the engine's kind.
3. An engine that refuses a call is named with its answer, and the next ones are not called.
"""

from typing import Any

import pytest

from engines.fakes import FakeEngine
from turnkeeper.choices import EngineKind, PauseMode
from turnkeeper.engines import EngineClient
from turnkeeper.engines.control import ControlAction, choose_control_wire
from turnkeeper.errors import EngineError
from turnkeeper.fleet import EngineMonitor
from turnkeeper.fleet.controller import EngineController
from turnkeeper.generation import Gate
from turnkeeper.server.engines import call_engines
from turnkeeper.service.control import EngineControl
from turnkeeper.testing import ManualClock, ScriptedEngine, ScriptedVllm, running

OK = {"url": "http://a", "ok": True, "error": None}
FAILED = {"url": "http://b", "ok": False, "error": "gone"}


def make_control(answers: list[dict[str, Any]], calls: list[str]) -> EngineControl:
    async def forward(order: ControlAction) -> list[dict[str, Any]]:
        calls.extend(call.path for call in order(choose_control_wire(EngineKind.SGLANG)))
        return answers

    clock = ManualClock()
    gate = Gate(clock)
    return EngineControl(gate=gate, monitor=EngineMonitor(FakeEngine(), gate, clock), forward=forward)


def give_orders(client: EngineClient, kind: EngineKind = EngineKind.AUTO) -> EngineController:
    return EngineController(client, ManualClock(), kind=kind, timeout_s=10.0)


async def test_a_pause_that_fails_on_one_engine_lets_the_others_go_on() -> None:
    calls: list[str] = []
    control = make_control([OK, FAILED], calls)
    with pytest.raises(EngineError, match="http://b: gone"):
        await control.pause(PauseMode.RETRACT, forward=True)
    assert calls == ["/pause_generation", "/continue_generation"]
    assert control.state == "serving"


async def test_a_repeated_pause_that_fails_leaves_the_first_one_standing() -> None:
    calls: list[str] = []
    control = make_control([OK, FAILED], calls)
    await control.pause(PauseMode.RETRACT, forward=False)
    with pytest.raises(EngineError):
        await control.pause(PauseMode.RETRACT, forward=True)
    assert calls == ["/pause_generation"]
    assert control.state == "paused"


async def test_control_calls_go_to_the_workers_behind_a_router() -> None:
    client, router, worker = EngineClient(), ScriptedEngine(), ScriptedEngine()
    async with running(worker) as worker_url, running(router) as url:
        router.control_answers["/workers"] = (200, b'{"workers": [{"url": "' + worker_url.encode() + b'"}]}')
        answers = await call_engines(
            client, give_orders(client), [url], lambda wire: wire.plan_pause(PauseMode.RETRACT)
        )
    await client.close()
    assert answers == [{"url": worker_url, "ok": True, "error": None}]
    assert (worker.is_paused, router.is_paused) == (True, False)


@pytest.mark.parametrize("kind", [EngineKind.AUTO, EngineKind.VLLM])
async def test_vllm_is_told_on_its_own_routes(kind: EngineKind) -> None:
    client, engine = EngineClient(), ScriptedVllm()
    orders = give_orders(client, kind)
    async with running(engine) as url:
        answers = await call_engines(client, orders, [url + "/"], lambda wire: wire.plan_pause(PauseMode.RETRACT))
        assert engine.is_paused
        await call_engines(client, orders, [url], lambda wire: wire.plan_continue())
        assert not engine.is_paused
    await client.close()
    assert answers == [{"url": url, "ok": True, "error": None}]
    told = [f"{call.path}?{call.query}" for call in engine.requests if call.method == "POST"]
    assert told == ["/pause?mode=keep", "/reset_prefix_cache?reset_running_requests=true", "/resume?"]


async def test_an_engine_that_refuses_is_named_with_its_answer() -> None:
    client, production, other = EngineClient(), ScriptedVllm(), ScriptedVllm()
    production.has_dev_routes = False
    async with running(production) as url, running(other) as other_url:
        answers = await call_engines(
            client,
            give_orders(client, EngineKind.VLLM),
            [url, other_url],
            lambda wire: wire.plan_pause(PauseMode.ABORT),
        )
    await client.close()
    [answer] = answers
    assert (answer["url"], answer["ok"]) == (url, False)
    assert "/pause?mode=abort answered 404" in answer["error"]
    assert all(call.method == "GET" for call in other.requests)
