"""Options of the session server beside each other: what a log, traces or a store cost a turn.

Servers that differ in nothing but an option answer the same agents, in front of one mock engine. They take turns within
one run, in an order that changes from round to round, so that what else the machine does falls on all of them alike.
Each is compared with the plainest one within the same round; the differences of all rounds, and how far they spread,
say more than any figure. Which options there are to compare is in `turnkeeper.bench.groups`.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from math import comb
from statistics import median

from turnkeeper.bench.heads import find_content_length
from turnkeeper.bench.load import run_load
from turnkeeper.bench.load.client import Client
from turnkeeper.bench.measure import choose_seed, open_agents
from turnkeeper.bench.scenario import Case
from turnkeeper.bench.stack import BenchServer, Material, running_mock, running_server
from turnkeeper.bench.yardstick import measure_yardstick

SCRAPE_S = 1.0
"""Seconds between two scrapes of a variant's metrics."""

_CONFIDENCE = 0.95


class Measure(StrEnum):
    """The figures by which two servers are compared, by name and unit. More is worse in each of them."""

    CPU = "CPU of the process, %"
    """CPU time a turn, in hundredths of the base's."""
    SPEED = "turns/s lost, %"
    """Turns a second, in hundredths of the base's."""
    CPU_YARDSTICKS = "CPU of the process, yardsticks"
    """CPU time a turn, in the work that no turn can leave out."""
    LOOP_YARDSTICKS = "CPU of the event loop's thread, yardsticks"
    """CPU time a turn of the event loop's thread alone, without the threads that write logs, encode and send."""
    P99 = "p99, yardsticks"
    """What the slowest hundredth of turns takes at least, from the agent's side."""

    def compare(self, play: "Play", base: "Play", yardstick_ms: float) -> float:
        """Return how much more a play took than one of the base in the same round."""
        match self:
            case Measure.CPU:
                return 100 * (play.cpu_ms / base.cpu_ms - 1)
            case Measure.SPEED:
                return 100 * (1 - play.turns_per_s / base.turns_per_s)
            case Measure.CPU_YARDSTICKS:
                return (play.cpu_ms - base.cpu_ms) / yardstick_ms
            case Measure.LOOP_YARDSTICKS:
                return (play.loop_ms - base.loop_ms) / yardstick_ms
            case Measure.P99:
                return (play.p99_ms - base.p99_ms) / yardstick_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One server."""

    name: str
    """Says in a few words how the server differs from the one that it is compared with."""
    flags: tuple[str, ...] = ()
    """The flags that set it apart. ``{folder}`` in one stands for an empty folder of its own, ``{collector}`` for the
    URL of a collector that throws away the spans that it gets."""
    is_scraped: bool = False
    """Whether its metrics are scraped while it is at work."""
    limits: Mapping[Measure, float] = field(default_factory=dict[Measure, float])
    """How much more it may take than the base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The servers that are compared."""

    name: str
    case: Case
    """What the agents do."""
    base: Variant
    """The server with which the others are compared."""
    variants: tuple[Variant, ...]
    rounds: int = 12
    """How often each is measured; one more round before them warms everything up."""

    @property
    def servers(self) -> tuple[Variant, ...]:
        """The base, then the others."""
        return (self.base, *self.variants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One server's turns in one round."""

    cpu_ms: float
    """CPU time of the process a turn, from the end of its play before to the end of this one: what it does behind its
    replies, such as sending a batch of spans, is part of their cost."""
    loop_ms: float
    """The part of it that the event loop's thread took."""
    turns_per_s: float
    p99_ms: float
    """What the slowest hundredth of its turns took at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """How much more one server took than the base: the median over the rounds."""

    median: float
    low: float
    high: float
    """The median lies between the two with a probability of 95%, if there are six rounds or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """A comparison and its plays."""

    comparison: Comparison
    plays: Mapping[str, tuple[Play, ...]]
    """One a round, by the server's name."""
    yardstick_ms: float
    """CPU time of one turn's unavoidable work in this run; see `turnkeeper.bench.yardstick`."""

    def compare(self, name: str, measure: Measure) -> PairedDifference:
        """Compare a server with the base."""
        base = self.plays[self.comparison.base.name]
        return summarize_differences(
            [
                measure.compare(play, other, self.yardstick_ms)
                for play, other in zip(self.plays[name], base, strict=True)
            ]
        )

    def median_of(self, name: str, read: Callable[[Play], float]) -> float:
        """Return the median over the rounds of a server's figure."""
        return median(map(read, self.plays[name]))


def summarize_differences(values: Sequence[float]) -> PairedDifference:
    """Find the median, and the interval that it lies in whatever the distribution of the values."""
    ordered, count = sorted(values), len(values)
    # How likely the median lies outside the values but for so many at each end: one more, two more, and so on.
    outside = accumulate(2 * comb(count, left_out) / 2**count for left_out in range(count))
    place = max(0, sum(chance <= 1 - _CONFIDENCE for chance in outside) - 1)
    return PairedDifference(median=median(ordered), low=ordered[place], high=ordered[count - 1 - place])


async def measure_comparison(comparison: Comparison, material: Material) -> ComparisonResult:
    """Measure every server in every round; all of them run from the first round to the last."""
    case, plays = comparison.case, {server.name: list[Play]() for server in comparison.servers}
    async with AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running_mock(material, case.model, case.talk, delay_s=case.delay_s))
        collector = await stack.enter_async_context(running_collector())
        runners: dict[str, _Runner] = {}
        for variant in comparison.servers:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir=material.folder))
            flags = [flag.format(folder=folder, collector=collector) for flag in variant.flags]
            server = await stack.enter_async_context(
                running_server(material, case.model, mock, (*case.server_flags, *flags))
            )
            runners[variant.name] = _Runner(case=case, material=material, server=server, is_scraped=variant.is_scraped)
        for number in range(comparison.rounds + 1):
            for name in order_round(list(runners), number):
                play = await runners[name].play(number)
                if number:
                    plays[name].append(play)
        yardsticks = [
            measure_yardstick(case, material.tokenizer, material.ruler, mock.replies, seed=material.seed + number)
            for number in range(3)
        ]
    return ComparisonResult(
        comparison=comparison,
        plays={name: tuple(of_server) for name, of_server in plays.items()},
        yardstick_ms=median(yardsticks),
    )


def order_round(names: Sequence[str], number: int) -> list[str]:
    """Order one round: each server begins as often as any other, and every other round runs backwards."""
    place = number // 2 % len(names)
    ordered = [*names[place:], *names[:place]]
    return ordered[::-1] if number % 2 else ordered


@dataclass(slots=True, kw_only=True)
class _Runner:
    """One server, and the CPU time that it had taken at the end of its last play."""

    case: Case
    material: Material
    server: BenchServer
    is_scraped: bool
    cpu_s: float = 0.0
    loop_s: float = 0.0

    async def play(self, number: int) -> Play:
        """Play one round: new agents take all their turns at this server, whose CPU time and latencies are measured."""
        meter, seed = self.server.meter, choose_seed(self.material, number)
        agents = await open_agents(self.case, self.material, self.server.url, seed=seed)
        async with AsyncExitStack() as stack:
            if self.is_scraped:
                await stack.enter_async_context(_scraping(self.server.url))
            latencies = await run_load(agents, self.case.turns_each, think_s=self.case.think_s, seed=seed)
        for agent in agents:
            agent.client.close()
        cpu_s, loop_s = meter.read_cpu_s(), meter.read_loop_cpu_s()
        play = Play(
            cpu_ms=(cpu_s - self.cpu_s) * 1e3 / latencies.turns,
            loop_ms=(loop_s - self.loop_s) * 1e3 / latencies.turns,
            turns_per_s=latencies.turns_per_s,
            p99_ms=latencies.p99_ms,
        )
        self.cpu_s, self.loop_s = cpu_s, loop_s
        return play


@asynccontextmanager
async def _scraping(url: str) -> AsyncGenerator[None]:
    """Scrape the metrics of a server at an even pace until the block ends."""
    client = await Client.connect(url)

    async def scrape() -> None:
        await asyncio.sleep(SCRAPE_S / 2)
        while True:
            await client.request("GET", "/metrics")
            await asyncio.sleep(SCRAPE_S)

    task = asyncio.create_task(scrape())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        client.close()


@asynccontextmanager
async def running_collector() -> AsyncGenerator[str]:
    """Run a collector that throws away what it is sent; its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(find_content_length(head, len(head) - 4) or 0)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/traces"
