"""``python -m benchmarks.updates``: every case, the table of figures, status 1 where something does not hold."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.updates.case import CASES
from benchmarks.updates.judge import Figures, Verdict
from benchmarks.updates.replay import Weights
from benchmarks.updates.report import build_table, format_markdown
from benchmarks.updates.rounds import Load, Round
from benchmarks.updates.run import Note, run_case, running_stage


def main(
    repeats: Annotated[int, typer.Option(min=1, help="Updates in each case.")] = 20,
    seconds: Annotated[float, typer.Option(help="No round begins later; each case has an equal share.")] = 900,
    rollouts: Annotated[int, typer.Option(min=1, help="Rollouts around each update.")] = 12,
    markdown: Annotated[bool, typer.Option(help="Print the table as Markdown.")] = False,
) -> None:
    """Update weights under load in every pause mode, and compute every logprob again."""
    console = Console()
    totals: dict[str, Figures] = {}
    problems: list[str] = []

    def note(played: Round, verdict: Verdict) -> None:
        name = played.case.name
        totals[name] = totals.get(name, Figures()) + verdict.figures
        problems.extend(f"{name}, round {totals[name].rounds}: {problem}" for problem in verdict.problems)
        state = f"{len(verdict.problems)} problems" if verdict.problems else "holds"
        told = "told" if played.is_told else "not told"
        console.print(f"{name}: update {played.update.version} ({told}), {state}", highlight=False)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder), note, repeats=repeats, seconds=seconds, load=Load(rollouts=rollouts)))
    if markdown:
        typer.echo(format_markdown(totals))
    else:
        console.print(build_table(totals))
    for problem in problems:
        console.print(f"[bold red]FAILED[/] {problem}", highlight=False)
    raise typer.Exit(1 if problems else 0)


async def _run(folder: Path, note: Note, *, repeats: int, seconds: float, load: Load) -> None:
    weights = Weights()
    async with running_stage(folder) as stage:
        for case in CASES:
            share = seconds / len(CASES)
            await run_case(
                stage, case, folder, repeats=repeats, load=load, weights=weights, seconds=share, on_round=note
            )


if __name__ == "__main__":
    typer.run(main)
