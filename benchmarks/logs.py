"""The cost of the log: ``python -m benchmarks.logs``.

Servers that differ in nothing but their log answer the same agents, in front of one mock engine. They take turns within
one run, in an order that changes from round to round, so that what else the machine does falls on all of them alike.
Every log goes to a file. The figures are CPU time of the server's process a turn, and turns a second, as medians over
the rounds; each is also compared with that of the server that logs errors alone, within the same round.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from turnkeeper.bench.load import run_load
from turnkeeper.bench.measure import open_agents
from turnkeeper.bench.scenario import Case
from turnkeeper.bench.server import find_checkpoint
from turnkeeper.bench.stack import BenchServer, Material, running_mock, running_server

BASE = "errors alone"
"""The log that the others are compared with."""

LOGS: Mapping[str, tuple[str, ...]] = {
    BASE: ("--log-level", "error"),
    "info, text": (),
    "info, JSON": ("--log-format", "json"),
    "info, JSON, access log": ("--log-format", "json", "--access-log"),
    "debug, JSON": ("--log-format", "json", "--log-level", "debug"),
}
"""The flags of each server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """The figures of one server, one a round."""

    cpu_ms: tuple[float, ...]
    """CPU time a turn."""
    turns_per_s: tuple[float, ...]


async def measure(
    case: Case, material: Material, logs: Mapping[str, Sequence[str]], rounds: int
) -> dict[str, LogFigures]:
    """Measure every server in every round.

    Args:
        case: what the agents do.
        material: a tokenizer and texts.
        logs: the flags of each server, by its name.
        rounds: how often each is measured; one more round before them warms everything up.
    """
    cpu_ms: dict[str, list[float]] = {name: [] for name in logs}
    speeds: dict[str, list[float]] = {name: [] for name in logs}
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running_mock(material, case.model, case.talk))
        servers = {
            name: await stack.enter_async_context(
                running_server(material, case.model, mock, (*case.server_flags, *flags))
            )
            for name, flags in logs.items()
        }
        for number in range(rounds + 1):
            for name in order_round(list(servers), number):
                cpu, speed = await _play(case, material, servers[name], seed=material.seed + 100 * number)
                if number:
                    cpu_ms[name].append(cpu)
                    speeds[name].append(speed)
    return {name: LogFigures(cpu_ms=tuple(cpu_ms[name]), turns_per_s=tuple(speeds[name])) for name in logs}


def order_round(names: list[str], number: int) -> list[str]:
    """The order of one round: each begins once, and every other round runs backwards."""
    place = number // 2 % len(names)
    ordered = names[place:] + names[:place]
    return ordered[::-1] if number % 2 else ordered


async def _play(case: Case, material: Material, server: BenchServer, *, seed: int) -> tuple[float, float]:
    agents = await open_agents(case, material, server.url, seed=seed)
    before = server.meter.read_cpu_s()
    latencies = await run_load(agents, case.turns_each, seed=seed)
    cpu_s = server.meter.read_cpu_s() - before
    for agent in agents:
        agent.client.close()
    return cpu_s * 1e3 / latencies.turns, latencies.turns_per_s


def compare(figures: LogFigures, base: LogFigures) -> float:
    """The CPU time a turn over that of the base in the same round, in hundredths of it: the median over the rounds."""
    return median(100 * (mine / other - 1) for mine, other in zip(figures.cpu_ms, base.cpu_ms, strict=True))


def render(measured: Mapping[str, LogFigures]) -> Table:
    """Render the figures as a table."""
    table = Table("log", "CPU ms a turn", "more than errors alone", "turns/s", title="The cost of the log")
    for name, figures in measured.items():
        more = compare(figures, measured[BASE])
        table.add_row(name, f"{median(figures.cpu_ms):.3f}", f"{more:+.1f}%", f"{median(figures.turns_per_s):.0f}")
    return table


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--only", nargs="*", choices=list(LOGS), default=list(LOGS), metavar="LOG")
    arguments = parser.parse_args()
    case = Case(sessions=arguments.sessions, turns=arguments.turns)
    logs = {name: flags for name, flags in LOGS.items() if name in (BASE, *arguments.only)}
    with tempfile.TemporaryDirectory() as folder:
        material = Material.read(find_checkpoint(None), Path(folder), seed=0)
        Console(width=120).print(render(asyncio.run(measure(case, material, logs, arguments.rounds))))


if __name__ == "__main__":
    main()
