"""What ``turnkeeper verify`` prints."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnkeeper.rendering.checks import CheckOutcome, CheckResult, VerifyReport

_STYLES = {
    CheckOutcome.HOLDS: "green",
    CheckOutcome.REFUSED: "dim",
    CheckOutcome.DIFFERS: "bold red",
    CheckOutcome.FAILS: "bold red",
}

_SHOWN = 160
"""How many characters of a text are printed from the first difference on."""


def print_report(console: Console, report: VerifyReport, directory: Path) -> None:
    """Print a row for each append, each difference, the verdict, and what would fix it."""
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
