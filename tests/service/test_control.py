"""What a trainer says about the engines.

1. A forwarded pause that fails on one engine lets those that it paused go on; a pause that was there before stays.
2. Control calls go to the workers behind a router, never to the router.
"""

from typing import Any

import pytest

from engines.fakes import FakeEngine
from turnkeeper.choices import PauseMode
from turnkeeper.engines import EngineClient, EngineWatch, Gate
from turnkeeper.errors import EngineError
from turnkeeper.service.build import call_engines
from turnkeeper.service.control import EngineControl
from turnkeeper.testing.clock import ManualClock
from turnkeeper.testing.engine import ScriptedEngine
from turnkeeper.testing.serve import running

OK = {"url": "http://a", "ok": True, "error": None}
FAILED = {"url": "http://b", "ok": False, "error": "gone"}


def make_control(answers: list[dict[str, Any]], calls: list[str]) -> EngineControl:
    async def forward(path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        calls.append(path)
        return answers

    clock = ManualClock()
    gate = Gate(clock)
    return EngineControl(gate=gate, watch=EngineWatch(FakeEngine(), gate, clock), forward=forward)


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
        answers = await call_engines(client, [url], "/pause_generation", {"mode": "retract"})
    await client.close()
    assert answers == [{"url": worker_url, "ok": True, "error": None}]
    assert (worker.is_paused, router.is_paused) == (True, False)
