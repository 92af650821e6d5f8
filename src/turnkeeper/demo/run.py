"""One run: start the stack, play all rollouts, update the weights in between, write the evidence, audit it."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from openai import AsyncOpenAI
from rich.progress import Progress

from turnkeeper.choices import PauseMode
from turnkeeper.client import Retry, SessionClient, SessionHandle
from turnkeeper.demo.agent import RolloutOutcome, play_task
from turnkeeper.demo.audit import AuditReport, audit
from turnkeeper.demo.evidence import read_evidence, write_outcomes, write_session
from turnkeeper.demo.killing import DemoServer, Killer
from turnkeeper.demo.stack import Stack, running_engines
from turnkeeper.demo.tasks import Task, held_out_tasks
from turnkeeper.demo.trainer import DemoTrainer
from turnkeeper.errors import ConfigError
from turnkeeper.tiny.checkpoint import derive_weights, read_weights, write_checkpoint

CONCURRENCY = 32
"""Rollouts in flight at once: enough for two engines to batch, few enough that the update meets every stage."""

PATIENCE = Retry(attempts=1_000, total_s=300.0, longest_wait_s=2.0)
"""How long callers wait for a server that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of a run."""

    tasks: int = 32
    rollouts: int = 2
    """Rollouts of each task."""
    mode: PauseMode = PauseMode.IN_PLACE
    folder: Path = Path("runs/demo")
    seed: int = 0
    is_killed: bool = False
    """Whether the session server is killed in the middle, and started again on its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The result of a run."""

    report: AuditReport
    seconds: float


async def run_demo(options: DemoOptions, progress: Progress) -> DemoResult:
    """Run once; the folder holds all evidence afterwards.

    Raises:
        TurnkeeperError: a process did not start, or a rollout failed.
    """
    started = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    checkpoints = _write_checkpoints(options.folder)
    kept = ("--store", str(options.folder / "store")) if options.is_killed else ()
    async with running_engines(options.folder, checkpoint=checkpoints[0]) as engine_urls:
        server = DemoServer(options.folder, engine_urls, mode=options.mode, checkpoint=checkpoints[0], options=kept)
        async with server as url:
            stack = Stack(server_url=url, engine_urls=engine_urls)
            trainer = DemoTrainer(stack, options.mode, checkpoints[1], rollouts=options.tasks * options.rollouts)
            killer = Killer(server, stack) if options.is_killed else None
            outcomes = await _play_all(options, stack, trainer, killer, progress)
    seconds = time.monotonic() - started
    write_outcomes(options.folder, outcomes)
    _write_run(options, checkpoints, server.kills, seconds)
    return DemoResult(report=audit(read_evidence(options.folder)), seconds=seconds)


def _write_checkpoints(folder: Path) -> tuple[Path, Path]:
    """Write the shipped weights and the ones derived from them, to which the trainer updates."""
    first, second = folder / "checkpoint-1", folder / "checkpoint-2"
    write_checkpoint(first)
    weights = read_weights(first).weights
    write_checkpoint(second, weights=derive_weights(weights, seed=1))
    return first, second


def _write_run(
    options: DemoOptions, checkpoints: tuple[Path, Path], kills: Sequence[Sequence[int]], seconds: float
) -> None:
    """Last of all files, so that a folder without it is a run that did not finish."""
    weights = [hashlib.sha256((one / "weights.safetensors").read_bytes()).hexdigest() for one in checkpoints]
    run = {
        "tasks": options.tasks,
        "rollouts": options.rollouts,
        "mode": options.mode.value,
        "seed": options.seed,
        "weights": weights,
        "is_killed": options.is_killed,
        "kills": kills,
        "seconds": seconds,
    }
    (options.folder / "run.json").write_bytes(orjson.dumps(run))


async def _play_all(
    options: DemoOptions, stack: Stack, trainer: DemoTrainer, killer: Killer | None, progress: Progress
) -> list[RolloutOutcome]:
    tasks = [task for task in held_out_tasks(options.tasks, options.seed) for _ in range(options.rollouts)]
    bar = progress.add_task(f"{options.mode.value}: rollouts", total=len(tasks))
    places = asyncio.Semaphore(CONCURRENCY)
    outcomes: list[RolloutOutcome] = []

    async def play(index: int, task: Task) -> None:
        async with places, client.session() as session:
            agent = openai.with_options(base_url=session.base_url)
            outcome = await play_task(agent, task, rollout=index % options.rollouts, session_id=session.session_id)
            await _collect(options.folder, session)
        outcomes.append(outcome)
        progress.advance(bar)
        for watching in (trainer, killer):
            if watching is not None:
                watching.note_progress(len(outcomes) / len(tasks))

    client = SessionClient(stack.server_url, retry=PATIENCE)
    # One pool of connections for all agents. Where nothing is killed nothing fails, and a retry would hide what does.
    retries = 0 if killer is None else PATIENCE.attempts
    updating = asyncio.Lock()
    async with (
        AsyncOpenAI(api_key="unused", timeout=300.0, max_retries=retries) as openai,
        asyncio.TaskGroup() as group,
    ):
        update = group.create_task(trainer.update_once(updating))
        if killer is not None:
            group.create_task(killer.run(updating))
        for index, task in enumerate(tasks):
            group.create_task(play(index, task))
        report = await update
        done = f"{report.paused_s:.2f} s of pause, {len(outcomes)} rollouts done"
        line = f"weights updated to version {report.version}: {done}"
        progress.console.print(line, highlight=False)
    return outcomes


async def _collect(folder: Path, session: SessionHandle) -> None:
    payload = await session.samples_payload()
    info = await session.info()
    write_session(folder, session.session_id, payload=payload, info=info["metadata"])


def clear_folder(folder: Path) -> None:
    """Remove an earlier run's files.

    Raises:
        ConfigError: the folder holds something else than a run.
    """
    if not folder.exists():
        return
    known = {"outcomes.jsonl", "run.json", "samples", "sessions", "store", "checkpoint-1", "checkpoint-2", "server.log"}
    strangers = [
        path.name
        for path in folder.iterdir()
        if path.name not in known and not path.name.startswith(("engine-", "server-"))
    ]
    if strangers:
        raise ConfigError(f"{folder} holds {strangers[0]}, which no run wrote", hint="name another folder with --out")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
