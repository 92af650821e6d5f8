"""The speed of small sessions beside large ones: eight sessions of 128k tokens with full routing rows.

Every reply to a large session carries 250 MiB of rows. The small sessions' turns are timed alone and beside large ones,
through the session server and with the mock hit directly. Large sessions think between turns, so that the cores, which
the mock engine and the agents share, are not full.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeAlias

from turnkeeper.bench.load import Latencies, run_load, summarize, take_turns
from turnkeeper.bench.load.agent import Agent
from turnkeeper.bench.load.workload import SHORT, Talk
from turnkeeper.bench.measure import open_agents, open_direct_agents
from turnkeeper.bench.scenario import Case, Rows
from turnkeeper.bench.stack import Material, running_mock, running_server
from turnkeeper.choices import TokenizerBackend

BESIDE = "small sessions beside large ones"
"""What the case is called."""

_ENDLESS = 1_000_000

LARGE = Talk(name="128k at once", turns=100, first_tokens=122_000, prompt_tokens=1_350)
"""A conversation that is long from its first turn on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The sizes of the measurement."""

    large_sessions: int = 8
    large: Talk = LARGE
    large_think_s: float = 5.0
    """The mean time a large session's agent takes between turns."""
    small_sessions: int = 16
    small_turns: int = 4
    small_think_s: float = 0.5
    rounds: int = 6
    """How often the small sessions are measured, each time new ones: of 64 turns, the slowest would be the p99."""
    tokenizer: TokenizerBackend = TokenizerBackend.TOKENIZERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The latencies of small sessions, alone and beside large ones."""

    alone: Latencies
    beside: Latencies
    """While large sessions were at work."""
    large_turns: int
    """Turns that the large sessions took meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideResult:
    """The turns of small sessions."""

    plan: Beside
    direct: Pair
    """With the mock hit directly by all."""
    served: Pair
    """Through the session server."""
    peak_mib: float
    """The most that was resident in the server."""


OpenAgents: TypeAlias = Callable[[Case, int], Awaitable[list[Agent]]]
"""Opens the agents of a case; the second argument is the seed of their texts."""


async def measure_beside(material: Material, plan: Beside) -> BesideResult:
    """Time small sessions alone, then beside large ones."""
    case = Case(sessions=plan.small_sessions, rows=Rows.FULL, talk=SHORT, tokenizer=plan.tokenizer)
    async with (
        running_mock(material, case.model, case.talk) as mock,
        running_server(material, case.model, mock, case.server_flags) as server,
    ):
        direct = await _measure_pair(
            plan, case, lambda each, seed: open_direct_agents(each, material, mock, seed=material.seed + seed)
        )
        server.meter.reset_peak()
        served = await _measure_pair(
            plan, case, lambda each, seed: open_agents(each, material, server.url, seed=material.seed + seed)
        )
        return BesideResult(plan=plan, direct=direct, served=served, peak_mib=server.meter.read_peak_mib())


async def _measure_pair(plan: Beside, case: Case, open_all: OpenAgents) -> Pair:
    alone = await _measure_small(plan, case, open_all, seed=0)
    large = await open_all(replace(case, sessions=plan.large_sessions, talk=plan.large), 500)
    await run_load(large, 1)
    work = asyncio.create_task(run_load(large, _ENDLESS, think_s=plan.large_think_s, seed=3))
    beside = await _measure_small(plan, case, open_all, seed=1_000)
    turns = sum(agent.turns for agent in large) - len(large)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    for agent in large:
        agent.client.close()
    return Pair(alone=alone, beside=beside, large_turns=turns)


async def _measure_small(plan: Beside, case: Case, open_all: OpenAgents, *, seed: int) -> Latencies:
    """Measure the small sessions' turns of all rounds together."""
    taken_s: list[float] = []
    started = perf_counter()
    for number in range(plan.rounds):
        small = await open_all(case, seed + 100 * number)
        taken_s += await take_turns(small, plan.small_turns, think_s=plan.small_think_s, seed=seed + number)
        for agent in small:
            agent.client.close()
    return summarize(taken_s, perf_counter() - started)
