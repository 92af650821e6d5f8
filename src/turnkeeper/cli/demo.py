"""``turnkeeper demo``: the main job in small, every figure checked."""

import asyncio
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from turnkeeper.choices import PauseMode
from turnkeeper.errors import ConfigError, TurnkeeperError


class Modes(StrEnum):
    """The pause modes, or all three in turn."""

    ABORT = "abort"
    RETRACT = "retract"
    IN_PLACE = "in_place"
    ALL = "all"


def demo(
    mode: Annotated[
        Modes,
        typer.Option("--pause-generation-mode", help="How the trainer pauses the engines; all: the three in turn."),
    ] = Modes.IN_PLACE,
    tasks: Annotated[int, typer.Option(min=2, help="Held-out arithmetic tasks.")] = 32,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 2,
    out: Annotated[Path, typer.Option(help="Where samples, traces and logs go; a folder for each mode.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Which tasks are drawn.")] = 0,
    audit: Annotated[Path | None, typer.Option(help="Run nothing: check a finished run's folder again.")] = None,
) -> None:
    """Collect agentic rollouts across a weight update, and check every figure of them."""
    console = Console()
    try:
        if audit is not None:
            raise typer.Exit(_audit(audit, console))
        modes = (
            [PauseMode(one.value) for one in Modes if one is not Modes.ALL]
            if mode is Modes.ALL
            else [PauseMode(mode.value)]
        )
        failed = [one for one in modes if not _run(one, console, out=out, tasks=tasks, rollouts=rollouts, seed=seed)]
    except TurnkeeperError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
    raise typer.Exit(1 if failed else 0)


def _run(mode: PauseMode, console: Console, *, out: Path, tasks: int, rollouts: int, seed: int) -> bool:
    """Run one mode, with progress; whether all invariants hold."""
    _require_agent()
    from turnkeeper.demo.report import print_report
    from turnkeeper.demo.run import DemoOptions, clear_folder, run_demo

    folder = out / mode.value
    options = DemoOptions(tasks=tasks, rollouts=rollouts, mode=mode, folder=folder, seed=seed)
    clear_folder(folder)
    console.print(f"pause mode {mode.value}: {tasks} tasks x {rollouts} rollouts, 2 engines", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        result = asyncio.run(run_demo(options, progress))
    print_report(console, result.report, folder=folder, mode=mode.value, seconds=result.seconds)
    return not result.report.violations


def _audit(folder: Path, console: Console) -> int:
    from turnkeeper.demo.audit import audit
    from turnkeeper.demo.evidence import read_evidence
    from turnkeeper.demo.report import print_report

    evidence = read_evidence(folder)
    report = audit(evidence)
    print_report(console, report, folder=folder, mode=evidence.run["mode"], seconds=evidence.run["seconds"])
    return 1 if report.violations else 0


def _require_agent() -> None:
    """The agent is a plain OpenAI client, which the server itself does not need."""
    if find_spec("openai") is None:
        raise ConfigError("the demo's agent needs the package openai", hint="pip install 'turnkeeper[demo]'")
