"""What the pure parts of a turn cost, by the length of the history: ``python -m benchmarks.parts``.

A conversation of 4,000, 32,000 and 128,000 tokens is about to take its next turn, which adds the same everywhere. Each
part is done several times, never twice with the same text. Without garbage collection; that is no part's own.

``--callgrind`` counts the instructions of each part under valgrind, exactly, where times vary by half on a busy
machine: between two calls of ``getppid``, at which valgrind writes down what it has counted, lie only the steps of one
part. Its processor has no AVX-512, so that numpy, orjson and pybase64 take their AVX2 code.
"""

import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from statistics import median
from time import strftime, thread_time
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

import turnkeeper
from benchmarks.conversation import Conversation
from benchmarks.steps import PARTS, Step
from turnkeeper.bench.server import find_checkpoint, name_tokenizer
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.rendering import build_renderer
from turnkeeper.service.encoding import limit_libraries

LENGTHS = (4_000, 32_000, 128_000)
COUNT = 10
ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""What would make two counts differ."""

_MARKED = "getppid"
Measure: TypeAlias = Callable[[Sequence[Step]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFigure:
    """One part at one length of the history."""

    part: str
    tokens: int
    value: float
    """Milliseconds, or instructions, a call."""


def run_parts(
    measure: Measure, talks: Iterator[Conversation], *, names: Sequence[str] = tuple(PARTS), count: int = COUNT
) -> Iterator[PartFigure]:
    """Each part of each conversation."""
    for talk in talks:
        for name in names:
            first, *steps = PARTS[name](talk, count + 1)
            first()  # what is cached by what does not change is there from then on
            gc.collect()
            gc.disable()
            yield PartFigure(part=name, tokens=talk.tokens, value=measure(steps))
            gc.enable()


def time_steps(steps: Sequence[Step]) -> float:
    """The median of their CPU times, in milliseconds."""
    times: list[float] = []
    for step in steps:
        started = thread_time()
        step()
        times.append((thread_time() - started) * 1e3)
    return median(times)


def mark_steps(steps: Sequence[Step]) -> float:
    """Do them between two marks that valgrind sees."""
    os.getppid()
    for step in steps:
        step()
    os.getppid()
    return 0.0


def count_instructions(checkpoint: Path, names: Sequence[str], lengths: Sequence[int], count: int) -> list[PartFigure]:
    """Run the parts under callgrind; instructions a call.

    Raises:
        typer.Exit: valgrind is not there, or it fails.
    """
    valgrind = which("valgrind")
    if valgrind is None:
        typer.echo("valgrind is not installed", err=True)
        raise typer.Exit(2)
    options = [f"--part={name}" for name in names] + [f"--tokens={length}" for length in lengths]
    command = [sys.executable, "-m", "benchmarks.parts", "--marked", f"--count={count}", *options]
    command += ["--checkpoint", str(checkpoint)]
    source = str(Path(turnkeeper.__file__).parent.parent)
    with tempfile.TemporaryDirectory() as folder:
        tool = [valgrind, "--tool=callgrind", f"--dump-before={_MARKED}", f"--callgrind-out-file={folder}/out"]
        done = subprocess.run(
            [*tool, *command],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            typer.echo(f"valgrind failed: {done.stderr[-2000:]}", err=True)
            raise typer.Exit(2)
        totals = [
            read_total(Path(folder, f"out.{2 * place + 2}").read_text()) for place in range(len(names) * len(lengths))
        ]
    places = [(name, length) for length in lengths for name in names]
    return [
        PartFigure(part=name, tokens=length, value=total / count)
        for (name, length), total in zip(places, totals, strict=True)
    ]


def read_total(dump: str) -> int:
    """The instructions of one of callgrind's dumps."""
    found = re.search(r"^(?:totals|summary): (\d+)", dump, re.MULTILINE)
    if found is None:
        raise ValueError("callgrind's dump has no totals")
    return int(found.group(1))


def render_figures(figures: Sequence[PartFigure], unit: str, digits: int) -> Table:
    """Parts by lengths, and what the longest history costs in costs of the shortest."""
    lengths = sorted({figure.tokens for figure in figures})
    table = Table(title=unit, title_justify="left")
    table.add_column("part", no_wrap=True)
    for name in (*(f"{length:,} tokens" for length in lengths), "ratio"):
        table.add_column(name, justify="right")
    for name in dict.fromkeys(figure.part for figure in figures):
        values = [figure.value for figure in figures if figure.part == name]
        table.add_row(name, *(f"{value:,.{digits}f}" for value in values), f"{values[-1] / values[0]:.1f}")
    return table


def build_conversations(checkpoint: Path, lengths: Sequence[int]) -> Iterator[Conversation]:
    """The conversations, one after the other."""
    renderer = build_renderer(read_checkpoint(checkpoint), "qwen3", format_time=strftime)
    return (Conversation.hold(renderer, tokens) for tokens in lengths)


def main(
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with a Qwen3 tokenizer.")] = None,
    part: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this part; may be repeated.")] = None,
    tokens: Annotated[list[int] | None, typer.Option(help="Lengths of the history.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Calls of each part.")] = COUNT,
    callgrind: Annotated[bool, typer.Option("--callgrind", help="Count instructions under valgrind.")] = False,
    marked: Annotated[bool, typer.Option("--marked", hidden=True)] = False,
) -> None:
    """Measure the parts."""
    limit_libraries()
    folder, names, lengths = find_checkpoint(checkpoint), part or list(PARTS), tokens or list(LENGTHS)
    if marked:
        list(run_parts(mark_steps, build_conversations(folder, lengths), names=names, count=count))
        return
    if callgrind:
        counted = count_instructions(folder, names, lengths, count)
        table = render_figures(counted, "instructions a call", 0)
    else:
        timed = list(run_parts(time_steps, build_conversations(folder, lengths), names=names, count=count))
        table = render_figures(timed, "CPU ms a call", 3)
    console = Console(width=120)
    console.print(f"tokenizer: {name_tokenizer(folder)}", highlight=False)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
