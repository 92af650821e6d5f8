"""Turns in flight on two embedded engines while the weights change under them.

In every pause mode, under load, through the fleet, the pool, the gate and the runner:

1. Every turn ends as one whole completion of its full length; none is recorded that was aborted.
2. What a turn says of its versions is true: where it names one version, the forced forward of those weights gives its
   logprobs.
3. Rows cover every path, and are those of the forwards that sampled its tokens where one version did.
4. `resume` joins pieces of two versions; `restart` gives one version to all tokens.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from channelkit import capture_rows, rows_of_turn
from tiny.builders import SHAPE, WEIGHTS, write_small_checkpoint
from tiny.oracle import naive_forward
from turnkeeper.channels.routing import RoutingShape, plan_rows
from turnkeeper.choices import OnAbort, PauseMode
from turnkeeper.clock import SystemClock
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.engines import EngineClient, GenerateRequest, SglangEngine
from turnkeeper.fleet import EngineFleet, EngineMonitor, EnginePool, PoolMember
from turnkeeper.generation import Gate, RunnerOptions, TurnOutcome, TurnRunner
from turnkeeper.testing import running
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.server import build_app

ROUTING = RoutingShape(layers=SHAPE.num_hidden_layers, topk=SHAPE.num_experts_per_tok, experts=SHAPE.num_experts)
TURNS, LENGTH = 12, 200


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{len(ids)} ids"}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Two engines and everything in front of them."""

    engines: list[TinyEngine]
    fleet: EngineFleet
    runner: TurnRunner
    gate: Gate
    new_weights: str

    async def wait_until_busy(self) -> None:
        """Return when both engines are generating."""
        async with asyncio.timeout(20):
            while not all([await engine.call(lambda scheduler: scheduler.running_count) for engine in self.engines]):
                pass  # each look lets the engines' threads go on

    async def update(self) -> None:
        """An update as a trainer runs it: the session server is told, then the engines."""
        self.gate.pause(self.fleet.mode)
        await self.fleet.update_from_disk(self.new_weights, "new")
        self.gate.resume()


@asynccontextmanager
async def staged(mode: PauseMode, on_abort: OnAbort, folder: Path) -> AsyncGenerator[Stage]:
    old, new = (write_small_checkpoint(folder / name, WEIGHTS[i]) for i, name in enumerate(("old", "new")))
    async with AsyncExitStack() as stack:
        engines = [TinyEngine(EngineOptions(checkpoint=old)) for _ in range(2)]
        urls = [await stack.enter_async_context(running(build_app(engine))) for engine in engines]
        client, clock = EngineClient(timeout_s=60.0), SystemClock()
        stack.push_async_callback(client.close)
        gate = Gate(clock)
        pool = EnginePool([PoolMember(url=url, engine=SglangEngine(url, client)) for url in urls], now=clock.now)
        captures = (capture_rows(ROUTING, mode=mode),)
        options = RunnerOptions(pause_mode=mode, on_abort=on_abort, captures=captures, gate_timeout_s=30.0)
        runner = TurnRunner(pool, gate, EngineMonitor(pool, gate, clock), clock, options, parse=parse)
        stack.push_async_callback(runner.close)
        fleet = EngineFleet(urls, client=client, clock=clock, mode=mode)
        yield Stage(engines=engines, fleet=fleet, runner=runner, gate=gate, new_weights=str(new))


def ask(number: int, mode: PauseMode) -> GenerateRequest:
    prompt, addition = freeze_ids([5 + number, 6, 7, 8]), mode is not PauseMode.RETRACT
    return GenerateRequest(
        rid=f"turn-{number:04d}",
        session_id=f"{number:032x}",
        prompt_ids=prompt,
        messages=({"role": "user", "content": "x"},),
        sampling={"max_tokens": LENGTH, "ignore_eos": True, "seed": number},
        asked={"routed_experts": plan_rows(parent_tokens=0, common_prefix=0, use_addition_r3=addition)},
    )


async def play(mode: PauseMode, on_abort: OnAbort, folder: Path) -> list[TurnOutcome]:
    async with staged(mode, on_abort, folder) as stage:
        turns = [asyncio.create_task(stage.runner.run(ask(number, mode))) for number in range(TURNS)]
        await stage.wait_until_busy()
        await stage.update()
        return await asyncio.gather(*turns)


CASES = [
    pytest.param(PauseMode.ABORT, OnAbort.RESTART, id="abort, restart"),
    pytest.param(PauseMode.ABORT, OnAbort.RESUME, id="abort, resume"),
    pytest.param(PauseMode.RETRACT, OnAbort.RESTART, id="retract"),
    pytest.param(PauseMode.IN_PLACE, OnAbort.RESTART, id="in place"),
]


@pytest.mark.parametrize(("mode", "on_abort"), CASES)
async def test_turns_in_flight_survive_an_update_whole(mode: PauseMode, on_abort: OnAbort, tmp_path: Path) -> None:
    outcomes = await play(mode, on_abort, tmp_path)
    seen: set[str | None] = set()
    for number, outcome in enumerate(outcomes):
        completion = outcome.completion
        assert (len(completion.ids), completion.finish_reason) == (LENGTH, "length")
        assert rows_of_turn(completion) is not None
        assert len(rows_of_turn(completion)) == 4 + LENGTH - 1
        versions = [span.version for span in completion.versions]
        seen.update(versions)
        assert set(versions) <= {"default", "new"}, "the engine names every version"
        if number < 2 and len(versions) == 1:  # the oracle is slow
            check_forced(number, outcome, WEIGHTS[versions[0] == "new"])
    assert "new" in seen, "the update met turns in flight"
    restarted = [outcome for outcome in outcomes if outcome.aborted_tokens]
    crossed = [outcome for outcome in outcomes if len(outcome.completion.versions) > 1]
    if on_abort is OnAbort.RESUME:
        assert crossed
        assert not restarted
    elif mode is PauseMode.ABORT:
        assert restarted
        assert not crossed
    else:
        assert crossed
        assert all(outcome.attempts == 1 for outcome in outcomes)


def check_forced(number: int, outcome: TurnOutcome, weights: dict[str, Any]) -> None:
    """A turn of one version is what one forward of those weights computes over its path."""
    completion = outcome.completion
    path = [5 + number, 6, 7, 8, *completion.ids.tolist()]
    logits, experts = naive_forward(SHAPE, {n: a.astype(np.float16) for n, a in weights.items()}, path[:-1])
    chosen = logits[3:] - np.logaddexp.reduce(logits[3:], axis=-1, keepdims=True)
    forced = chosen[np.arange(LENGTH), completion.ids]
    assert np.abs(forced - completion.logprobs).max() < 1e-3
    assert rows_of_turn(completion) is not None
    # float32 and float64 may disagree where two experts are as good as equal
    assert (rows_of_turn(completion).experts_RLK == experts).mean() > 0.99
