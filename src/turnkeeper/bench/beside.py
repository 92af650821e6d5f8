"""Whether small sessions stay quick beside large ones: eight sessions of 128k tokens with full routing rows.

Every reply to a large session carries 250 MiB of rows. The small sessions' turns are timed first without, then beside
them. Large sessions think between turns, so that the cores, which the mock engine and the agents share, are not full.
"""

import asyncio
from dataclasses import dataclass, replace

from turnkeeper.bench.load import Latencies, run_load
from turnkeeper.bench.measure import open_agents
from turnkeeper.bench.scenario import Case, Rows
from turnkeeper.bench.stack import Material, running_mock, running_server
from turnkeeper.bench.workload import SHORT, Talk

_ENDLESS = 1_000_000

LARGE = Talk(name="128k at once", turns=100, first_tokens=122_000, prompt_tokens=1_350)
"""A conversation that is long from its first turn on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """How the sizes of the test are chosen."""

    large_sessions: int = 8
    large: Talk = LARGE
    large_think_s: float = 5.0
    """The mean time a large session's agent takes between turns."""
    small_sessions: int = 16
    small_turns: int = 4
    small_think_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideResult:
    """The turns of small sessions."""

    plan: Beside
    alone: Latencies
    beside: Latencies
    """Of the turns that began while large sessions were at work."""
    large_turns: int
    """Turns that the large sessions took meanwhile."""
    peak_mib: float
    """The most that was resident in the server."""


async def measure_beside(material: Material, plan: Beside) -> BesideResult:
    """Time small sessions alone, then beside large ones."""
    case = Case(sessions=plan.small_sessions, rows=Rows.FULL, talk=SHORT)
    heavy = replace(case, sessions=plan.large_sessions, talk=plan.large)
    async with (
        running_mock(material, case.model, case.talk) as mock,
        running_server(material, case.model, mock, case.server_flags) as server,
    ):
        small = await open_agents(case, material, server, seed=material.seed)
        alone = await run_load(small, plan.small_turns, think_s=plan.small_think_s, seed=1)
        large = await open_agents(heavy, material, server, seed=material.seed + 500)
        await run_load(large, 1)
        server.meter.reset_peak()
        work = asyncio.create_task(run_load(large, _ENDLESS, think_s=plan.large_think_s, seed=3))
        small = await open_agents(case, material, server, seed=material.seed + 900)
        beside = await run_load(small, plan.small_turns, think_s=plan.small_think_s, seed=2)
        work.cancel()
        turns = sum(agent.turns for agent in large) - len(large)
        await asyncio.gather(work, return_exceptions=True)
        return BesideResult(
            plan=plan, alone=alone, beside=beside, large_turns=turns, peak_mib=server.meter.read_peak_mib()
        )
