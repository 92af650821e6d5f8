"""``turnkeeper bench``: what a turn costs a session server.

What measures is imported only when asked for: it would add 80 ms to the start of every other command.
"""

import json
import random
from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.errors import ConfigError


def bench(
    full: Annotated[bool, typer.Option("--full", help="Every case and comparison, an hour.")] = False,
    only: Annotated[
        str, typer.Option(metavar="TEXT", help="Only cases and comparisons whose name holds this text.")
    ] = "",
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with a Qwen3 tokenizer; else the one that `make assets` fetches, else the embedded one.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures of all runs as JSON.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the texts; they vary from run to run without one.")] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Also measure a session server that you started on this machine, its engine being --mock-port.",
        ),
    ] = None,
    mock_port: Annotated[int, typer.Option(help="The port of the mock engine behind --reference.")] = 31999,
) -> None:
    """Measure what a turn costs a session server, beside a mock engine. The quick cases take about six minutes.

    `--only telemetry` compares servers with and without a log, scraped metrics and traces.
    """
    beside = None if reference is None else (reference, mock_port)
    _measure_server(full, only, checkpoint, as_json, seed, beside)


def _measure_server(
    full: bool,
    only: str,
    checkpoint: Path | None,
    as_json: bool,
    seed: int | None,
    reference: tuple[str, int] | None,
) -> None:
    from turnkeeper.bench.beside import BESIDE, Beside
    from turnkeeper.bench.budget import LIMITS
    from turnkeeper.bench.groups import COMPARISONS
    from turnkeeper.bench.reference import Reference
    from turnkeeper.bench.scenario import QUICK, list_all
    from turnkeeper.bench.server import find_checkpoint, run_server_bench
    from turnkeeper.cli.output import build_console

    chosen = random.randrange(1 << 20) if seed is None else seed
    cases = list_all() if full else QUICK
    chosen_cases = [case for case in cases if only in case.name]
    beside = [Beside(tokenizer=backend) for backend in LIMITS] if full and only in BESIDE else []
    comparisons = [comparison for comparison in COMPARISONS if (full or only) and only in comparison.name]
    if not chosen_cases and not beside and not comparisons:
        names = [
            *(case.name for case in cases),
            *([BESIDE] if full else []),
            *(comparison.name for comparison in COMPARISONS),
        ]
        raise ConfigError(
            f"--only {only!r} is in no case's name; there are: {'; '.join(names)}",
            hint="" if full else "--full has more cases",
        )
    report = run_server_bench(
        chosen_cases,
        checkpoint=find_checkpoint(checkpoint),
        seed=chosen,
        beside=beside,
        reference=None if reference is None else Reference(url=reference[0].rstrip("/"), mock_port=reference[1]),
        comparisons=comparisons,
        on_comparison=lambda comparison: typer.echo(f"{comparison.name}: {comparison.rounds} rounds", err=True),
        on_case=lambda result: typer.echo(f"{result.case.name}: {result.median_of('cpu_ms'):.1f} ms a turn", err=True),
    )
    if as_json:
        typer.echo(json.dumps({**report.to_json(), "seed": chosen}, indent=1))
        return
    console = build_console()
    report.print(console)
    console.print(f"texts of seed {chosen}")
