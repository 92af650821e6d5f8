"""Where a turn's time goes: ``python -m benchmarks.profile --rows none --out FILE.svg``.

py-spy (``pip install py-spy``) samples the stacks of a session server, native frames included, while sessions take
their turns one after the other, against the mock engine; a table shows shares by concern, and the picture the stacks.
CPU times come from the kernel, and are those of a server that is stopped for each sample: read the shares.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.flame import Stack, draw_flames, parse_stacks, share_concerns
from turnkeeper.bench.load import run_load
from turnkeeper.bench.measure import open_agents
from turnkeeper.bench.scenario import Case, Rows
from turnkeeper.bench.server import find_checkpoint
from turnkeeper.bench.stack import BenchServer, Material, running_mock, running_server
from turnkeeper.choices import TokenizerBackend
from turnkeeper.errors import ConfigError, ProcessError

RATE = 400
"""Samples a second."""
MAIN = "MainThread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One case, sampled."""

    case: Case
    stacks: Counter[Stack]
    turns: int
    cpu_ms: float
    """CPU time of the server's process a turn."""
    main_cpu_ms: float
    """That of its event loop's thread."""


def find_sampler() -> str:
    """Where py-spy is: beside this interpreter, or on the path.

    Raises:
        ConfigError: nowhere.
    """
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise ConfigError("py-spy is not installed", hint="pip install py-spy")
    return found


@asynccontextmanager
async def sampling(sampler: str, pid: int, raw: Path) -> AsyncGenerator[None]:
    """Sample a process into a file until the block ends.

    Raises:
        ProcessError: py-spy could not; mostly it may not trace the process.
    """
    options = ["--pid", str(pid), "--rate", str(RATE), "--format", "raw", "--threads", "--native", "--output", str(raw)]
    pipe, stdout = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(sampler, "record", *options, stdout=pipe, stderr=stdout)
    assert process.stdout is not None
    said = await process.stdout.readline()  # it says so when it begins
    try:
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        rest, _ = await process.communicate()
    if process.returncode:
        raise ProcessError(f"py-spy failed: {(said + rest).decode(errors='replace').strip()[-500:]}")


async def profile_case(case: Case, material: Material, *, sessions: int) -> Profile:
    """Let sessions take all their turns, one session after the other, and sample the server meanwhile."""
    raw = material.folder / "stacks"
    async with (
        running_mock(material, case.model, case.talk) as mock,
        running_server(material, case.model, mock, case.server_flags) as server,
    ):
        await _talk(case, material, server, seed=0)
        pid = server.meter.pid
        async with sampling(find_sampler(), pid, raw):
            before, before_main = server.meter.read_cpu_s(), read_thread_cpu_s(pid)
            for number in range(sessions):
                await _talk(case, material, server, seed=1_000 + number)
            cpu_s, main_cpu_s = server.meter.read_cpu_s() - before, read_thread_cpu_s(pid) - before_main
    turns = sessions * case.turns_each
    return Profile(
        case=case,
        stacks=parse_stacks(raw.read_text()),
        turns=turns,
        cpu_ms=cpu_s * 1e3 / turns,
        main_cpu_ms=min(main_cpu_s, cpu_s) * 1e3 / turns,
    )


async def _talk(case: Case, material: Material, server: BenchServer, *, seed: int) -> None:
    agents = await open_agents(case, material, server.url, seed=material.seed + seed)
    await run_load(agents, case.turns_each)
    for agent in agents:
        agent.client.close()


def read_thread_cpu_s(pid: int) -> float:
    """CPU seconds of a process's first thread; while it runs, some milliseconds late."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def render_shares(profile: Profile) -> Table:
    """Each concern's share of the event loop's thread, of the other threads, and of all."""
    main = {stack: count for stack, count in profile.stacks.items() if stack[0] == MAIN}
    others = {stack: count for stack, count in profile.stacks.items() if stack[0] != MAIN}
    other_ms = profile.cpu_ms - profile.main_cpu_ms
    title = f"{profile.case.name}: {profile.turns} turns, {profile.cpu_ms:.1f} ms of CPU a turn while it was sampled"
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(("concern", "event loop", "other threads", "of all")):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    shares = [_share(stacks) for stacks in (main, others)]
    weights = (profile.main_cpu_ms / profile.cpu_ms, other_ms / profile.cpu_ms)
    whole = {
        name: sum(part.get(name, 0.0) * weight for part, weight in zip(shares, weights, strict=True))
        for name in {*shares[0], *shares[1]}
    }
    for name, share in sorted(whole.items(), key=lambda item: -item[1]):
        figures = (shares[0].get(name, 0.0), shares[1].get(name, 0.0), share)
        table.add_row(name, *(f"{100 * figure:.1f}%" for figure in figures))
    return table


def _share(stacks: Mapping[Stack, int]) -> Mapping[str, float]:
    return share_concerns(stacks) if stacks else {}


def main(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the picture goes, an SVG.")],
    rows: Annotated[Rows, typer.Option(help="Which routing rows the engine sends.")] = Rows.NONE,
    tokenizer_backend: Annotated[TokenizerBackend, typer.Option(help="Which library encodes.")] = (
        TokenizerBackend.TOKENIZERS
    ),
    sessions: Annotated[int, typer.Option(min=1, help="How many sessions of 20 turns.")] = 40,
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with a Qwen3 tokenizer.")] = None,
    seed: Annotated[int, typer.Option(help="Of the texts.")] = 7,
) -> None:
    """Profile one case."""
    case = replace(Case(sessions=1), rows=rows, tokenizer=tokenizer_backend)
    with tempfile.TemporaryDirectory() as folder:
        material = Material.read(find_checkpoint(checkpoint), Path(folder), seed)
        profile = uvloop.run(profile_case(case, material, sessions=sessions))
    out.write_text(draw_flames(profile.stacks, case.name))
    Console(width=120).print(render_shares(profile))


if __name__ == "__main__":
    typer.run(main)
