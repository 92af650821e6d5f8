"""What a turn may cost, and whether it does: figures of the cases that the budget speaks of.

The reference is the session server that turnkeeper can replace, measured on the same kind of machine: two shared cores
of an x86-64 virtual machine, server, mock engine and load generator on the same cores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from turnkeeper.bench.beside import BesideResult
from turnkeeper.bench.measure import CaseResult
from turnkeeper.bench.scenario import Rows
from turnkeeper.bench.workload import SHORT
from turnkeeper.choices import HistoryKind, TokenizerBackend


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One figure."""

    figure: str
    unit: str
    reference: str
    """What the reference takes."""
    limit: float
    measured: float
    is_floor: bool = False
    """Whether more is better."""

    @property
    def is_met(self) -> bool:
        """Whether the figure is within the budget."""
        return self.measured >= self.limit if self.is_floor else self.measured <= self.limit


def check_budget(results: Sequence[CaseResult], beside: BesideResult | None = None) -> list[BudgetRow]:
    """The rows for which there are figures."""
    rows = [*_check_single(results), *_check_sixteen(results)]
    plain = [result for result in results if result.case.tokenizer is TokenizerBackend.TOKENIZERS]
    if plain:
        rest, first = (median(getattr(result, name) for result in plain) for name in ("rest_mib", "first_turn_s"))
        rows += [
            BudgetRow(figure="resident at rest", unit="MiB", reference="583", limit=230, measured=rest),
            BudgetRow(figure="start to first turn", unit="s", reference="10", limit=1.5, measured=first),
        ]
    if beside is not None:
        rows.append(
            BudgetRow(
                figure="p99 of small sessions beside eight of 128k, full R3",
                unit="ms",
                reference="",
                limit=60,
                measured=beside.served.beside.p99_ms,
            )
        )
    return rows


def _check_single(results: Sequence[CaseResult]) -> list[BudgetRow]:
    rows = _check_fast(results)
    costs = {Rows.NONE: ("22-28", 10.0), Rows.INCREMENTAL: ("31-49", 12.0), Rows.FULL: ("245-280", 36.0)}
    samples = {Rows.NONE: ("1000", 60.0), Rows.INCREMENTAL: ("1060", 150.0), Rows.FULL: ("2800", 150.0)}
    for result in filter(_is_plain, results):
        kind = result.case.rows
        if result.case.sessions != 1:
            continue
        reference, limit = costs[kind]
        cpu_ms = result.median_of("cpu_ms")
        rows.append(
            BudgetRow(figure=f"CPU a turn, R3 {kind}", unit="ms", reference=reference, limit=limit, measured=cpu_ms)
        )
        reference, limit = samples[kind]
        collect_ms = result.collected.median_ms
        rows.append(
            BudgetRow(figure=f"samples, R3 {kind}", unit="ms", reference=reference, limit=limit, measured=collect_ms)
        )
        if kind is not Rows.NONE:
            figure, kept = f"retained by a session, R3 {kind}", result.retained_mib
            rows.append(BudgetRow(figure=figure, unit="MiB", reference="74-690", limit=20, measured=kept))
    return rows


def _check_fast(results: Sequence[CaseResult]) -> list[BudgetRow]:
    rows: list[BudgetRow] = []
    costs = {Rows.NONE: ("22-28", 3.5), Rows.INCREMENTAL: ("31-49", 6.0), Rows.FULL: ("245-280", 30.0)}
    for result in results:
        case = result.case
        if case.tokenizer is not TokenizerBackend.FASTOKENS or case.sessions != 1:
            continue
        reference, limit = costs[case.rows]
        cpu_ms, rest = result.median_of("cpu_ms"), result.rest_mib
        figure = f"CPU a turn, R3 {case.rows}, fastokens"
        rows.append(BudgetRow(figure=figure, unit="ms", reference=reference, limit=limit, measured=cpu_ms))
        if case.rows is Rows.NONE:
            figure = "resident at rest, fastokens"
            rows.append(BudgetRow(figure=figure, unit="MiB", reference="583", limit=260, measured=rest))
    return rows


def _check_sixteen(results: Sequence[CaseResult]) -> list[BudgetRow]:
    rows: list[BudgetRow] = []
    for result in filter(_is_plain, results):
        case = result.case
        if case.sessions != 16 or case.rows is not Rows.NONE:
            continue
        if not case.think_s:
            speed = result.median_of("served.turns_per_s")
            figure, limit = "turns at 16 sessions", 3 * 32.0
            rows.append(
                BudgetRow(figure=figure, unit="1/s", reference="32-37", limit=limit, measured=speed, is_floor=True)
            )
            continue
        for name, reference, limit in (("p50", "41", 10), ("p99", "502", 30)):
            added = result.median_of(f"added_{name}_ms")
            figure = f"{name} added at 16 thinking sessions"
            rows.append(BudgetRow(figure=figure, unit="ms", reference=reference, limit=limit, measured=added))
    return rows


def _is_plain(result: CaseResult) -> bool:
    case = result.case
    return (
        case.talk is SHORT
        and case.model == "Qwen3-30B-A3B"
        and case.history is HistoryKind.LINEAR
        and not case.is_streamed
        and case.tokenizer is TokenizerBackend.TOKENIZERS
    )
