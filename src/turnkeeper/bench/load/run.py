"""Load: many agents at once, each turn after the one before it.

Closed: an agent sends its next turn at once. Open: it thinks for a while that is drawn from an exponential
distribution, so that the server is not kept busy.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from turnkeeper.bench.load.agent import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """The latencies that agents saw."""

    turns: int
    wall_s: float
    p50_ms: float
    p99_ms: float

    @property
    def turns_per_s(self) -> float:
        """Turns a second, all agents together."""
        return self.turns / self.wall_s


async def run_load(agents: Sequence[Agent], turns: int, *, think_s: float = 0.0, seed: int = 0) -> Latencies:
    """Let every agent take so many turns.

    Args:
        agents: who talks.
        turns: of each.
        think_s: the mean time before each turn; 0 for none.
        seed: of the draws.
    """
    started = perf_counter()
    taken = await take_turns(agents, turns, think_s=think_s, seed=seed)
    return summarize(taken, perf_counter() - started)


async def take_turns(agents: Sequence[Agent], turns: int, *, think_s: float = 0.0, seed: int = 0) -> list[float]:
    """Let every agent take so many turns; what each turn took, in seconds."""
    draw = random.Random(seed)
    taken: list[float] = []

    async def talk(agent: Agent) -> None:
        for _ in range(turns):
            if think_s:
                await asyncio.sleep(draw.expovariate(1 / think_s))
            taken.append(await agent.take_turn())

    await asyncio.gather(*(talk(agent) for agent in agents))
    return taken


def summarize(taken_s: Sequence[float], wall_s: float) -> Latencies:
    """Compute the quantiles of single turns."""
    p50, p99 = np.quantile(np.asarray(taken_s), (0.5, 0.99)) * 1e3
    return Latencies(turns=len(taken_s), wall_s=wall_s, p50_ms=float(p50), p99_ms=float(p99))
