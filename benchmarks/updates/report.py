"""The figures of all cases, as one table: for a terminal, or as Markdown for the documentation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.table import Table

from benchmarks.updates.case import COOL, HOT
from benchmarks.updates.judge import Figures
from benchmarks.updates.replay import Gap, Gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    title: str
    read: Callable[[Figures], str]


def _show_replay(gap: Gap) -> str:
    return f"{gap.worst:.1e} ({gap.tokens:,} tokens)" if gap.tokens else "none"


def _show_gap(gap: Gap) -> str:
    return f"{gap.mean:.4f} ({gap.worst:.2f})" if gap.tokens else "none"


def _show_close_gap(gap: Gap) -> str:
    return f"{gap.mean:.1e} ({gap.worst:.1e})" if gap.tokens else "none"


def _show_wide(gaps: Gaps) -> str:
    return f"{gaps.wide / gaps.masked.tokens:.1%} of {gaps.masked.tokens:,}" if gaps.masked.tokens else "none"


ROWS = (
    _Row(title="updates", read=lambda f: f"{f.rounds}"),
    _Row(title="seconds of pause, on average", read=lambda f: f"{f.paused_s / max(1, f.rounds):.2f}"),
    _Row(title="rollouts", read=lambda f: f"{f.rollouts:,}"),
    _Row(title="turns delivered", read=lambda f: f"{f.turns:,}"),
    _Row(title="tokens sampled", read=lambda f: f"{f.sampled:,}"),
    _Row(title="calls in flight at updates", read=lambda f: f"{f.in_flight:,}"),
    _Row(title="calls aborted", read=lambda f: f"{f.aborted:,}"),
    _Row(title="generated again", read=lambda f: f"{f.restarted:,}"),
    _Row(title="resumed", read=lambda f: f"{f.resumed:,}"),
    _Row(title="answered 503 with Retry-After", read=lambda f: f"{f.refused:,}"),
    _Row(title="turns marked `rows_recomputed`", read=lambda f: f"{f.marked:,}"),
    _Row(title="prefix breaks", read=lambda f: f"{f.prefix_breaks:,}"),
    _Row(title="aborted turns recorded", read=lambda f: f"{f.recorded_aborts:,}"),
    _Row(title="paths of one version", read=lambda f: f"{f.single.full.paths:,}"),
    _Row(title="... worst difference, stored rows forced", read=lambda f: _show_replay(f.single.full)),
    _Row(title="... and masks applied", read=lambda f: _show_replay(f.single.masked)),
    _Row(title="engine calls replayed from the KV trace", read=lambda f: f"{f.traced.full.paths:,}"),
    _Row(title="... worst difference", read=lambda f: _show_replay(f.traced.full)),
    _Row(title="... and masks applied", read=lambda f: _show_replay(f.traced.masked)),
    _Row(title=f"temperature {COOL.temperature:g}: masks of more than one id", read=lambda f: _show_wide(f.cool)),
    _Row(title="... mean (worst) difference, masks applied", read=lambda f: _show_close_gap(f.cool.masked)),
    _Row(title="... without masks", read=lambda f: _show_gap(f.cool.unmasked)),
    _Row(title=f"temperature {HOT.temperature:g}: masks of more than one id", read=lambda f: _show_wide(f.hot)),
    _Row(title="... mean (worst) difference, masks applied", read=lambda f: _show_close_gap(f.hot.masked)),
    _Row(title="... without masks", read=lambda f: _show_gap(f.hot.unmasked)),
    _Row(title="paths that an update crossed", read=lambda f: f"{f.crossing.full.paths:,}"),
    _Row(title="... mean (worst) difference, stored rows", read=lambda f: _show_gap(f.crossing.full)),
    _Row(title="... and masks applied", read=lambda f: _show_gap(f.crossing.masked)),
    _Row(title="... mean (worst) difference, no rows", read=lambda f: _show_gap(f.crossing_unforced.full)),
)


def build_table(figures: Mapping[str, Figures]) -> Table:
    """One column a case; differences are of logprobs, in nats."""
    table = Table("figure", title="weight updates under load")
    for name in figures:
        table.add_column(name, justify="right")
    for row in ROWS:
        table.add_row(row.title, *map(row.read, figures.values()))
    return table


def format_markdown(figures: Mapping[str, Figures]) -> str:
    """Write the figures as a Markdown table."""
    lines = [f"| | {' | '.join(figures)} |", "|---|" + "---:|" * len(figures)]
    lines += [f"| {row.title} | {' | '.join(map(row.read, figures.values()))} |" for row in ROWS]
    return "\n".join(lines)
