"""One case, measured: the mock hit directly, then the session server in front of it, in the same run.

::

    start mock, server -> first turn -> for each run: direct load, served load, collect

The processes share their cores with this one. CPU time of the server's process, and ratios to the direct load beside
it, say more than any single time.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import orjson

from turnkeeper.bench.load import Latencies, run_load
from turnkeeper.bench.load.agent import Agent, DirectRows
from turnkeeper.bench.load.client import Client
from turnkeeper.bench.load.workload import Speaker
from turnkeeper.bench.scenario import ADMIN_KEY, Case, Rows
from turnkeeper.bench.stack import BenchServer, Material, Mock, ProcessMeter, running_mock, running_server
from turnkeeper.bench.yardstick import measure_yardstick

COLLECTED = 8
"""Sessions of a run whose samples are collected, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a case."""

    direct: Latencies
    """The mock hit directly."""
    served: Latencies
    """Through the session server."""
    cpu_ms: float
    """CPU time of the server's process a turn."""
    mock_cpu_ms: float
    """CPU time of the mock a turn, hit directly."""

    @property
    def added_p50_ms(self) -> float:
        """The milliseconds that the session server adds to the median turn."""
        return self.served.p50_ms - self.direct.p50_ms

    @property
    def added_p99_ms(self) -> float:
        """The milliseconds that the session server adds to the slowest hundredth of turns."""
        return self.served.p99_ms - self.direct.p99_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectFigures:
    """The samples of some sessions, asked for one after the other."""

    sessions: int
    median_ms: float
    """From asking to the last byte."""
    cpu_ms: float
    """CPU time of the server's process a session."""
    size_mib: float
    """Of one session's samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """A case and its runs."""

    case: Case
    runs: tuple[Run, ...]
    collected: CollectFigures
    retained_mib: float
    """How much more memory is resident for each session, all runs' sessions held and none collected."""
    ready_s: float
    """From the start of the process to its readiness line."""
    first_turn_s: float
    """From the start of the process to the reply of its first turn."""
    rest_mib: float
    """Resident before the first turn."""
    peak_mib: float
    """The most that was resident while turns were taken and samples collected."""
    yardstick_ms: float
    """CPU time of one turn's unavoidable work in this run; see `turnkeeper.bench.yardstick`."""

    @property
    def cpu_yardsticks(self) -> float:
        """CPU time of the session server a turn, in yardsticks."""
        return self.median_of("cpu_ms") / self.yardstick_ms

    @property
    def cpu_ratio(self) -> float:
        """CPU time of the session server a turn, in CPU times of the mock hit directly."""
        return self.median_of("cpu_ms") / self.median_of("mock_cpu_ms")

    @property
    def speed_ratio(self) -> float:
        """Turns a second through the session server, in those of the mock hit directly."""
        return self.median_of("served.turns_per_s") / self.median_of("direct.turns_per_s")

    def median_of(self, figure: str) -> float:
        """Return the median over the runs of a figure of ``Run``, or of ``direct`` or ``served``
        (``served.p50_ms``)."""
        names = figure.split(".")
        values: list[float] = []
        for run in self.runs:
            value: object = run
            for name in names:
                value = getattr(value, name)
            assert isinstance(value, float | int)
            values.append(value)
        return median(values)


async def measure_case(case: Case, material: Material) -> CaseResult:
    """Measure one case with processes of its own."""
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running_mock(material, case.model, case.talk))
        server = await stack.enter_async_context(running_server(material, case.model, mock, case.server_flags))
        rest_mib = server.meter.read_rss_mib()
        first_turn_s = await _warm_up(case, material, server)
        await _slow_down(mock, case.delay_s)
        server.meter.reset_peak()
        resident_mib = server.meter.read_rss_mib()
        agents: list[Agent] = []
        runs = [await _run(case, material, mock, server, number, agents) for number in range(case.runs)]
        grown_mib = server.meter.read_rss_mib() - resident_mib
        return CaseResult(
            case=case,
            runs=tuple(runs),
            collected=await collect_samples(agents[:COLLECTED], server.meter),
            retained_mib=grown_mib / len(agents),
            ready_s=server.ready_s,
            first_turn_s=first_turn_s,
            rest_mib=rest_mib,
            peak_mib=server.meter.read_peak_mib(),
            yardstick_ms=median(
                measure_yardstick(case, material.tokenizer, material.ruler, mock.replies, seed=material.seed + number)
                for number in range(min(case.runs, 3))
            ),
        )


async def _slow_down(mock: Mock, delay_s: float) -> None:
    client = await Client.connect(mock.url)
    await client.request("POST", "/bench", orjson.dumps({"delay_s": delay_s}))
    client.close()


async def _warm_up(case: Case, material: Material, server: BenchServer) -> float:
    """Two turns of a session of their own; when the first one was answered, in seconds since the process began."""
    (agent,) = await open_agents(replace(case, sessions=1), material, server.url, seed=material.seed - 1)
    await agent.take_turn()
    first_s = perf_counter() - server.started_at
    await agent.take_turn()
    agent.client.close()
    return first_s


async def _run(
    case: Case, material: Material, mock: Mock, server: BenchServer, number: int, all_agents: list[Agent]
) -> Run:
    """Make one run; its agents join the others, so that their sessions can be collected."""
    seed = choose_seed(material, number)
    mock_before = mock.meter.read_cpu_s()
    direct = await _run_directly(case, material, mock, seed)
    mock_cpu_s = mock.meter.read_cpu_s() - mock_before
    agents = await open_agents(case, material, server.url, seed=seed)
    before = server.meter.read_cpu_s()
    served = await run_load(agents, case.turns_each, think_s=case.think_s, seed=seed)
    cpu_s = server.meter.read_cpu_s() - before
    all_agents += agents
    return Run(
        direct=direct,
        served=served,
        cpu_ms=cpu_s * 1e3 / served.turns,
        mock_cpu_ms=mock_cpu_s * 1e3 / direct.turns,
    )


async def _run_directly(case: Case, material: Material, mock: Mock, seed: int) -> Latencies:
    agents = await open_direct_agents(case, material, mock, seed=seed)
    latencies = await run_load(agents, case.turns_each, think_s=case.think_s, seed=seed)
    for agent in agents:
        agent.client.close()
    return latencies


async def open_direct_agents(case: Case, material: Material, mock: Mock, *, seed: int) -> list[Agent]:
    """Agents that talk to the mock itself: the same bodies, and replies of the size that the server would get."""
    rows = DirectRows(is_incremental=case.rows is Rows.INCREMENTAL) if case.rows is not Rows.NONE else None
    return [
        Agent(
            await Client.connect(mock.url),
            "",
            Speaker(case.talk, material.ruler, seed + index),
            canned=mock.replies,
            direct_rows=rows,
            talk=case.talk,
        )
        for index in range(case.sessions)
    ]


def choose_seed(material: Material, number: int) -> int:
    """Choose the seed of the texts of a case's run, which is the same for every server that the run measures."""
    return material.seed + 1_000 * (number + 1)


async def open_agents(case: Case, material: Material, url: str, *, seed: int) -> list[Agent]:
    """Open an agent for each session, each with a connection of its own."""
    agents: list[Agent] = []
    for index in range(case.sessions):
        client = await Client.connect(url)
        client.key = ADMIN_KEY if case.has_keys else None
        scopes = b'{"scopes": ["collect"]}' if case.has_keys else b""
        created = orjson.loads(await client.request("POST", "/sessions", scopes))
        client.key = created.get("key")
        agents.append(
            Agent(
                client,
                f"/sessions/{created['session_id']}",
                Speaker(case.talk, material.ruler, seed + index),
                wants_stream=case.is_streamed,
                talk=case.talk,
            )
        )
    return agents


async def collect_samples(agents: Sequence[Agent], meter: ProcessMeter) -> CollectFigures:
    """Collect one session after the other."""
    walls: list[float] = []
    size = 0
    before = meter.read_cpu_s()
    for agent in agents:
        started = perf_counter()
        size = len(await agent.client.request("POST", f"{agent.base}/samples", b"{}"))
        walls.append((perf_counter() - started) * 1e3)
        await asyncio.sleep(0)
    cpu_s = meter.read_cpu_s() - before
    for agent in agents:
        agent.client.close()
    return CollectFigures(
        sessions=len(agents),
        median_ms=median(walls),
        cpu_ms=cpu_s * 1e3 / len(agents),
        size_mib=size / (1 << 20),
    )
