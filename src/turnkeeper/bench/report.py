"""A measurement as tables for people and as JSON for programs."""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from turnkeeper.bench.beside import BesideResult
from turnkeeper.bench.budget import LIMITS, BudgetRow, check_budget, check_comparisons
from turnkeeper.bench.comparison import ComparisonResult, Measure
from turnkeeper.bench.measure import CaseResult
from turnkeeper.bench.reference import ReferenceResult
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it was measured."""

    cpu: str
    cores: int
    system: str
    python: str
    commit: str
    """Of the checkout that was measured; empty where it is none."""

    @classmethod
    def read(cls) -> "Machine":
        """Describe the machine that runs this process."""
        return cls(
            cpu=_read_cpu(),
            cores=len(os.sched_getaffinity(0)),
            system=f"{platform.system()} {platform.machine()}",
            python=platform.python_version(),
            commit=_read_commit(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Everything that was measured."""

    machine: Machine
    tokenizer: str
    """Which tokenizer, in words."""
    load_s: float
    """How long the bench took to load it, in seconds."""
    results: Sequence[CaseResult]
    beside: Sequence[BesideResult] = ()
    reference: Sequence[ReferenceResult] = ()
    """The cases as another session server served them in this run; empty without ``--reference``."""
    comparisons: Sequence[ComparisonResult] = ()

    @property
    def budget(self) -> list[BudgetRow]:
        """The figures that the budget speaks of."""
        return [
            *check_budget(self.results, self.beside, load_s=self.load_s),
            *check_comparisons(self.comparisons),
        ]

    def to_json(self) -> JsonObject:
        """Return all figures of all runs, and their medians."""
        return {
            "machine": asdict(self.machine),
            "tokenizer": self.tokenizer,
            "load_s": self.load_s,
            "cases": [describe_case(result) for result in self.results],
            "beside": [asdict(found) for found in self.beside],
            "comparisons": [describe_comparison(result) for result in self.comparisons],
            "budget": [{**asdict(row), "is_met": row.is_met, "is_certain": row.is_certain} for row in self.budget],
            "reference": [{**asdict(found), "case": found.case.name} for found in self.reference],
        }

    def print(self, console: Console) -> None:
        """Show the tables."""
        machine = self.machine
        console.print(
            f"{machine.cpu}, {machine.cores} cores, {machine.system}, Python {machine.python}, "
            f"commit {machine.commit or 'unknown'}\ntokenizer: {self.tokenizer}\n"
            "Server, mock engine and load generator share the cores: read ratios and CPU time.",
            highlight=False,
        )
        if self.results:
            console.print(render_cases(self.results))
            console.print(render_memory(self.results))
        for found in self.beside:
            console.print(render_beside(found))
        for compared in self.comparisons:
            console.print(render_comparison(compared))
        if self.reference:
            console.print(render_reference(self.results, self.reference))
        console.print(render_budget(self.budget))


def describe_case(result: CaseResult) -> JsonObject:
    """Describe one case as JSON."""
    case = result.case
    runs: list[JsonObject] = [
        {**asdict(run), "added_p50_ms": run.added_p50_ms, "added_p99_ms": run.added_p99_ms} for run in result.runs
    ]
    return {
        "name": case.name,
        "sessions": case.sessions,
        "turns": case.turns_each,
        "rows": case.rows.value,
        "model": case.model,
        "history": case.history.value,
        "is_streamed": case.is_streamed,
        "cpu_ms": result.median_of("cpu_ms"),
        "yardstick_ms": result.yardstick_ms,
        "cpu_yardsticks": result.cpu_yardsticks,
        "cpu_ratio": result.cpu_ratio,
        "speed_ratio": result.speed_ratio,
        "added_p50_ms": result.median_of("added_p50_ms"),
        "added_p99_ms": result.median_of("added_p99_ms"),
        "turns_per_s": result.median_of("served.turns_per_s"),
        "ready_s": result.ready_s,
        "first_turn_s": result.first_turn_s,
        "rest_mib": result.rest_mib,
        "retained_mib": result.retained_mib,
        "peak_mib": result.peak_mib,
        "collected": asdict(result.collected),
        "runs": runs,
    }


def describe_comparison(result: ComparisonResult) -> JsonObject:
    """Describe one comparison as JSON."""
    comparison = result.comparison
    return {
        "name": comparison.name,
        "case": comparison.case.name,
        "base": comparison.base.name,
        "yardstick_ms": result.yardstick_ms,
        "servers": [
            {
                "name": server.name,
                "plays": [asdict(play) for play in result.plays[server.name]],
                "more": {measure.value: asdict(result.compare(server.name, measure)) for measure in Measure},
            }
            for server in comparison.servers
        ],
    }


def render_cases(results: Sequence[CaseResult]) -> Table:
    """Render what turns cost, ratios to the mock hit directly first."""
    table = _build_table(
        "turns: medians over the runs, beside the mock hit directly in the same run",
        (
            "case",
            "runs",
            "CPU x yardstick",
            "CPU x mock",
            "speed x mock",
            "CPU ms",
            "added p50 ms",
            "added p99 ms",
            "turns/s",
            "mock ms",
        ),
    )
    for result in results:
        figures = (
            f"{result.cpu_yardsticks:.2f}",
            f"{result.cpu_ratio:.0f}",
            f"{result.speed_ratio:.3f}",
            *(f"{result.median_of(name):.1f}" for name in ("cpu_ms", "added_p50_ms", "added_p99_ms")),
            f"{result.median_of('served.turns_per_s'):.0f}",
            f"{result.median_of('mock_cpu_ms'):.2f}",
        )
        table.add_row(result.case.name, str(len(result.runs)), *figures)
    return table


def render_memory(results: Sequence[CaseResult]) -> Table:
    """Start, memory and samples."""
    table = _build_table(
        "start, memory, samples",
        (
            "case",
            "ready s",
            "first turn s",
            "rest MiB",
            "a session MiB",
            "peak MiB",
            "collect ms",
            "CPU ms",
            "size MiB",
        ),
    )
    for result in results:
        collected = result.collected
        seconds = (f"{result.ready_s:.1f}", f"{result.first_turn_s:.1f}")
        memory = (f"{result.rest_mib:.0f}", f"{result.retained_mib:.1f}", f"{result.peak_mib:.0f}")
        samples = (f"{collected.median_ms:.0f}", f"{collected.cpu_ms:.0f}", f"{collected.size_mib:.1f}")
        table.add_row(result.case.name, *seconds, *memory, *samples)
    return table


def render_beside(result: BesideResult) -> Table:
    """Small sessions beside large ones."""
    table = _build_table(
        f"{result.plan.small_sessions} small sessions beside {result.plan.large_sessions} of 128k tokens, full R3"
        + LIMITS[result.plan.tokenizer].mark,
        ("small sessions", "turns", "p50 ms", "p99 ms"),
    )
    for name, pair in (("the mock directly", result.direct), ("the session server", result.served)):
        for place, latencies in (("alone", pair.alone), ("beside", pair.beside)):
            figures = (f"{latencies.p50_ms:.1f}", f"{latencies.p99_ms:.1f}")
            table.add_row(f"{name}, {place}", str(latencies.turns), *figures)
    return table


def render_comparison(result: ComparisonResult) -> Table:
    """Render what servers take more than the base of their comparison, with the interval of each median."""
    comparison = result.comparison
    table = _build_table(
        f"{comparison.name}: {comparison.case.name}, {comparison.rounds} rounds; more than {comparison.base.name!r}",
        (
            "server",
            "CPU ms a turn",
            "turns/s",
            "CPU, %",
            "turns/s lost, %",
            "CPU, 1/1000 yardstick",
            "of the loop's thread",
            "p99, yardsticks",
        ),
    )
    for server in comparison.servers:
        cells = [
            f"{result.median_of(server.name, lambda play: play.cpu_ms):.2f}",
            f"{result.median_of(server.name, lambda play: play.turns_per_s):.0f}",
        ]
        for measure in Measure if server is not comparison.base else ():
            found = result.compare(server.name, measure)
            scale = 1000 if measure in (Measure.CPU_YARDSTICKS, Measure.LOOP_YARDSTICKS) else 1
            median, low, high = (scale * value for value in (found.median, found.low, found.high))
            cells.append(f"{median:+.1f} ({low:+.1f} to {high:+.1f})")
        table.add_row(server.name, *cells)
    return table


def render_budget(rows: Sequence[BudgetRow]) -> Table:
    """Render the budget beside the measured figures."""
    table = _build_table("budget", ("figure", "unit", "budget", "measured", ""))
    for row in rows:
        limit = f"{'>= ' if row.is_floor else ''}{row.limit:g}"
        table.add_row(row.figure, row.unit, limit, f"{row.measured:.2f}", _judge(row))
    return table


def _judge(row: BudgetRow) -> str:
    said = "met" if row.is_met else "missed"
    return said if row.is_certain else f"{said}, within the noise"


def render_reference(results: Sequence[CaseResult], references: Sequence[ReferenceResult]) -> Table:
    """Render the reference beside turnkeeper: each figure of both, and how many times less turnkeeper takes."""
    table = _build_table(
        "the server of --reference, then turnkeeper, in the same run",
        ("case", "CPU ms a turn", "less", "p50 ms", "less", "p99 ms", "less", "turns/s", "more", "samples ms", "less"),
    )
    ours = {result.case.name: result for result in results}
    for found in references:
        result = ours[found.case.name]
        pairs = (
            (found.cpu_ms, result.median_of("cpu_ms")),
            (found.p50_ms, result.median_of("served.p50_ms")),
            (found.p99_ms, result.median_of("served.p99_ms")),
            (found.turns_per_s, result.median_of("served.turns_per_s")),
            (found.collect_ms, result.collected.median_ms),
        )
        cells: list[str] = []
        for place, (theirs, own) in enumerate(pairs):
            ratio = own / theirs if place == 3 else theirs / own
            cells += [f"{theirs:.1f} / {own:.1f}", f"{ratio:.1f}x"]
        table.add_row(found.case.name, *cells)
    return table


def _build_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=True)
    return table


def _read_cpu() -> str:
    lines: list[Any] = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _read_commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
