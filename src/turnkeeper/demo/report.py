"""The demo's last words: the table of figures, what was violated, and where the samples lie."""

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from turnkeeper.demo.audit import AuditReport
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """A finished run and what its audit found."""

    report: AuditReport
    folder: Path
    """Where the samples and the evidence lie."""
    mode: str
    """The pause mode."""
    seconds: float
    """From the first process to the last sample."""

    def to_json(self) -> JsonObject:
        """The run for programs: ``mode``, ``folder``, ``seconds``, ``holds``, ``figures``, ``violations``."""
        return {
            "mode": self.mode,
            "folder": str(self.folder),
            "seconds": self.seconds,
            "holds": not self.report.violations,
            "figures": asdict(self.report.figures),
            "violations": [
                {"invariant": str(each.invariant), "message": each.message} for each in self.report.violations
            ],
        }


def print_run(console: Console, run: DemoRun) -> None:
    """Print the table, then each violation, then how to open the samples."""
    report, folder = run.report, run.folder
    console.print(_build_table(report, mode=run.mode, seconds=run.seconds))
    for violation in report.violations:
        console.print(f"[bold red]FAILED[/] {violation.invariant.value}: {violation.message}", highlight=False)
    console.print(f"samples: {folder / 'samples'}, one file a session. To open one:", highlight=False, soft_wrap=True)
    for line in _opening_lines(folder):
        console.print(f"    {line}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"check this run again: turnkeeper demo --audit {folder}", highlight=False, soft_wrap=True)


def _build_table(report: AuditReport, *, mode: str, seconds: float) -> Table:
    """Build a table of each figure with the party that it was counted from."""
    figures = report.figures
    killed = (
        ("+ lost and played again", str(figures.lost), "engines, at the kills of the session server"),
        ("in flight at the kills", ", ".join(map(str, figures.in_flight_at_kills)), "engines"),
    )
    table = Table(title=f"pause mode {mode}: {'failed' if report.violations else 'all invariants hold'}")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("counted from", no_wrap=True)
    for row in (
        ("sessions", str(figures.sessions), "sessions collected"),
        ("turns", str(figures.turns), "replies that the agents received"),
        ("tokens sampled", str(figures.sampled), "engines"),
        ("= trainable", str(figures.trainable), "samples"),
        ("+ masked", str(figures.masked), "samples"),
        ("+ dropped", str(figures.dropped), "reasons that the sessions give"),
        *(killed if figures.in_flight_at_kills else ()),
        ("prefix breaks", str(figures.prefix_breaks), "prompts that the engines received"),
        ("rows checked", str(figures.rows_checked), "samples, against the engines' own"),
        ("weight versions seen", ", ".join(figures.versions), "samples"),
        ("in flight at the update", str(figures.in_flight_at_update), "engines"),
        ("tasks solved", f"{figures.solved} of {figures.sessions}", "final texts of the agents"),
        ("time", f"{seconds:.1f} s", "first process to last sample"),
    ):
        table.add_row(*row)
    return table


def _opening_lines(folder: Path) -> tuple[str, ...]:
    """Lines to type into a Python prompt."""
    return (
        "from pathlib import Path",
        "from turnkeeper.samples import decode_samples",
        f'path = min(Path("{folder / "samples"}").iterdir())',
        "sample = decode_samples(path.read_bytes()).samples[0]",
        "print(sample.response, sample.tokens.shape, sample.rollout_routed_experts.shape)",
    )
