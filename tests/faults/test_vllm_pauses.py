"""A vLLM that its trainer pauses without a word to the session server, with everything between the two.

1. Turns in flight and turns that come meanwhile end whole, whether it refuses calls while it is paused or holds them.
2. Each token names the weights that sampled it.
"""

import asyncio
from typing import Any

import pytest

from engines.builders import make_request
from turnkeeper.choices import EngineKind, EngineWire, OnAbort, PauseMode
from turnkeeper.clock import SystemClock
from turnkeeper.core.tokens import TokenIds
from turnkeeper.engines import EngineClient, GenerateRequest
from turnkeeper.fleet import EngineFleet, EngineMonitor, connect_engines
from turnkeeper.generation import Gate, RunnerOptions, TurnRunner
from turnkeeper.testing import ScriptedReply, ScriptedVllm, running


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{len(ids)} ids"}


@pytest.mark.parametrize("refuses", [True, False], ids=["0.33", "0.32"])
async def test_turns_survive_a_pause_that_nobody_told(refuses: bool) -> None:
    held = ScriptedReply(ids=[20, 21, 2], wait=asyncio.Event(), partial=1)
    app = ScriptedVllm([held], default=ScriptedReply(ids=[20, 21, 2]), weight_version="1")
    app.refuses_while_paused = refuses
    client, clock = EngineClient(), SystemClock()
    async with running(app) as url:
        engine = connect_engines([url], client, kind=EngineKind.AUTO, wire=EngineWire.CHAT, parse=parse, now=clock.now)
        gate = Gate(clock)
        monitor = EngineMonitor(engine, gate, clock, interval_s=0.05, fast_interval_s=0.02)
        looks = asyncio.create_task(monitor.run())
        options = RunnerOptions(pause_mode=PauseMode.ABORT, on_abort=OnAbort.RESTART, gate_timeout_s=20.0)
        runner = TurnRunner(engine, gate, monitor, clock, options, parse=parse)
        fleet = EngineFleet([url], client=client, clock=clock, mode=PauseMode.ABORT)
        first = asyncio.create_task(runner.run(make_request(rid="first")))
        await app.wait_for_generations(1)
        async with asyncio.timeout(20), fleet.paused("2"):
            second = asyncio.create_task(runner.run(make_request(rid="second")))
            assert await gate.wait_closed(20.0, gate.abort_signal), "a look sees the pause"
            assert not first.done()
            assert not second.done()
        outcomes = [await first, await second]
        looks.cancel()
        await runner.close()
    await client.close()
    for outcome in outcomes:
        assert outcome.completion.ids.tolist() == [20, 21, 2]
        assert [span.version for span in outcome.completion.versions] == ["2"]
    assert outcomes[0].aborted_tokens == 1
