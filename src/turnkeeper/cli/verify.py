"""``turnkeeper verify``: whether a checkpoint folder can be served under a family without breaking a prefix."""

import json
import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnkeeper.cli.options import declare, end_with_error
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.config.load import load
from turnkeeper.errors import ConfigError
from turnkeeper.rendering.checks import CheckOutcome, CheckResult, VerifyReport
from turnkeeper.rendering.checks import verify as run_cases

_STYLES = {
    CheckOutcome.HOLDS: "green",
    CheckOutcome.REFUSED: "dim",
    CheckOutcome.DIFFERS: "bold red",
    CheckOutcome.FAILS: "bold red",
}


def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint folder, as --hf-checkpoint takes it.")],
    tito_model: Annotated[str | None, declare("tito_model")] = None,
    chat_template_path: Annotated[str | None, declare("chat_template_path")] = None,
    apply_chat_template_kwargs: Annotated[str | None, declare("apply_chat_template_kwargs")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which appends to a session a checkpoint holds under a family.

    Exit status 0: the family holds what it promises. 1: it does not; what would fix it is shown. 2: the folder or an
    option cannot be used.
    """
    given = {
        "tito_model": tito_model,
        "chat_template_path": chat_template_path,
        "apply_chat_template_kwargs": apply_chat_template_kwargs,
    }
    try:
        model = load(given, environment=os.environ).settings.model
        template = model.chat_template_path
        report = run_cases(
            read_checkpoint(directory, chat_template_path=None if template is None else Path(template)),
            model.tito_model,
            chat_template_kwargs=model.apply_chat_template_kwargs,
            format_time=time.strftime,
        )
    except ConfigError as error:
        end_with_error(str(error))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        _print(report, directory)
    raise typer.Exit(0 if report.is_sound else 1)


def _print(report: VerifyReport, directory: Path) -> None:
    console = Console(highlight=False)
    table = Table("append", "outcome", "", box=None, pad_edge=False, header_style="bold")
    for result in report.results:
        detail = "" if result.outcome is CheckOutcome.HOLDS else result.detail
        table.add_row(Text(result.case), Text(result.outcome, style=_STYLES[result.outcome]), Text(detail))
    console.print(table)
    for result in report.results:
        if result.outcome is CheckOutcome.DIFFERS:
            _print_difference(console, result)
    for note in report.notes:
        console.print(Text(f"note: {note}", style="dim"))
    held = sum(result.outcome is CheckOutcome.HOLDS for result in report.results)
    verdict = "holds what it promises" if report.is_sound else "does not hold what it promises"
    console.print(f"\n{report.family} on {directory} {verdict}: {held} of {len(report.results)} hold", soft_wrap=True)
    fixes = list(dict.fromkeys(fix for result in report.results for fix in result.fixes))
    for fix in fixes:
        fixed = sum(fix in result.fixes for result in report.results)
        console.print(Text(f"would fix {fixed}: {fix}"), soft_wrap=True)


_SHOWN = 160
"""How many characters of a text are printed from the first difference on."""


def _print_difference(console: Console, result: CheckResult) -> None:
    start = next(
        (
            index
            for index, (left, right) in enumerate(zip(result.expected_text, result.actual_text, strict=False))
            if left != right
        ),
        min(len(result.expected_text), len(result.actual_text)),
    )
    start = max(0, start - 40)
    console.print(Text(f"\n{result.case}", style="bold"))
    for name, text in (("in place", result.expected_text), ("appended", result.actual_text)):
        console.print(Text(f"  {name}  {text[start : start + _SHOWN]!r}"), soft_wrap=True)
