"""``turnkeeper demo``: the main job in small, every figure checked.

Figures go to stdout, progress to stderr.
"""

import json
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnkeeper.errors import ConfigError

if TYPE_CHECKING:
    from turnkeeper.demo.report import DemoRun


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
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill the session server twice in the middle; it goes on with its store.")
    ] = False,
    audit: Annotated[Path | None, typer.Option(help="Run nothing: check a finished run's folder again.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Collect agentic rollouts across a weight update, and check every figure of them.

    Exit status 0: all invariants hold. 1: one is broken. 2: an option, or the folder of a run, cannot be used.
    """
    modes = [each for each in Modes if each is not Modes.ALL] if mode is Modes.ALL else [mode]
    started = (_run(one, out=out, tasks=tasks, rollouts=rollouts, seed=seed, kill=kill) for one in modes)
    runs: list[DemoRun] = []
    for run in started if audit is None else (_audit(audit),):
        runs.append(run)
        if not as_json:
            _print(run)
    if as_json:
        typer.echo(json.dumps({"runs": [run.to_json() for run in runs]}, indent=2))
    return 1 if any(run.report.violations for run in runs) else 0


def _run(mode: Modes, *, out: Path, tasks: int, rollouts: int, seed: int, kill: bool) -> "DemoRun":
    """Run one mode, with progress."""
    _require_agent()
    import asyncio

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from turnkeeper.choices import PauseMode
    from turnkeeper.cli.output import build_console
    from turnkeeper.demo.report import DemoRun
    from turnkeeper.demo.run import DemoOptions, clear_folder, run_demo

    console = build_console(stderr=True)
    folder = out / mode.value
    options = DemoOptions(
        tasks=tasks, rollouts=rollouts, mode=PauseMode(mode.value), folder=folder, seed=seed, is_killed=kill
    )
    clear_folder(folder)
    console.print(f"pause mode {mode.value}: {tasks} tasks x {rollouts} rollouts, 2 engines")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        result = asyncio.run(run_demo(options, progress))
    return DemoRun(report=result.report, folder=folder, mode=mode.value, seconds=result.seconds)


def _audit(folder: Path) -> "DemoRun":
    from turnkeeper.demo.audit import audit
    from turnkeeper.demo.evidence import read_evidence
    from turnkeeper.demo.report import DemoRun

    evidence = read_evidence(folder)
    return DemoRun(report=audit(evidence), folder=folder, mode=evidence.run["mode"], seconds=evidence.run["seconds"])


def _print(run: "DemoRun") -> None:
    from turnkeeper.cli.output import build_console
    from turnkeeper.demo.report import print_run

    print_run(build_console(), run)


def _require_agent() -> None:
    """The agent is a plain OpenAI client, which the server itself does not need."""
    if find_spec("openai") is None:
        raise ConfigError("the demo's agent needs the package openai", hint="pip install 'turnkeeper[demo]'")
