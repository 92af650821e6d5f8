"""What a turn may cost, and whether it does: figures of the cases that the budget speaks of.

The reference is the session server that turnkeeper can replace, measured on the same kind of machine: two shared cores
of an x86-64 virtual machine, server, mock engine and load generator on the same cores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is allowed with one tokenizer."""

    mark: str
    """Behind the names of its figures."""
    cpu_ms: Mapping[Rows, float]
    """A turn."""
    turns_per_s: float
    """At 16 sessions, no rows: three or ten times the reference's."""
    added_ms: Mapping[str, float]
    """At 16 thinking sessions, by quantile."""
    rest_mib: float
    beside_ms: float
    """The p99 of small sessions beside large ones."""


LIMITS: Mapping[TokenizerBackend, Limits] = {
    TokenizerBackend.TOKENIZERS: Limits(
        mark="",
        cpu_ms={Rows.NONE: 10.0, Rows.INCREMENTAL: 12.0, Rows.FULL: 36.0},
        turns_per_s=3 * 32.0,
        added_ms={"p50": 10.0, "p99": 30.0},
        rest_mib=230.0,
        beside_ms=60.0,
    ),
    TokenizerBackend.FASTOKENS: Limits(
        mark=", fastokens",
        cpu_ms={Rows.NONE: 3.5, Rows.INCREMENTAL: 6.0, Rows.FULL: 30.0},
        turns_per_s=10 * 32.0,
        added_ms={"p50": 4.0, "p99": 20.0},
        rest_mib=260.0,
        beside_ms=50.0,
    ),
}

SAMPLES_MS = {Rows.NONE: 60.0, Rows.INCREMENTAL: 150.0, Rows.FULL: 150.0}
RETAINED_MIB = 20.0
FIRST_TURN_S = 1.5

_REFERENCE_CPU = {Rows.NONE: "22-28", Rows.INCREMENTAL: "31-49", Rows.FULL: "245-280"}
_REFERENCE_SAMPLES = {Rows.NONE: "1000", Rows.INCREMENTAL: "1060", Rows.FULL: "2800"}
_REFERENCE_ADDED = {"p50": "41", "p99": "502"}


def check_budget(results: Sequence[CaseResult], beside: Sequence[BesideResult] = ()) -> list[BudgetRow]:
    """The rows for which there are figures."""
    rows: list[BudgetRow] = []
    for backend, limits in LIMITS.items():
        of_backend = [result for result in results if result.case.tokenizer is backend]
        for result in filter(_is_plain, of_backend):
            rows += _check_case(result, limits)
        if of_backend:
            rest = median(result.rest_mib for result in of_backend)
            rows.append(_build("resident at rest" + limits.mark, "MiB", "583", limits.rest_mib, rest))
    served = [result.first_turn_s for result in results if result.case.tokenizer is TokenizerBackend.TOKENIZERS]
    if served:
        first = median(served)
        rows.append(_build("start to first turn", "s", "10", FIRST_TURN_S, first))
    for found in beside:
        limits = LIMITS[found.plan.tokenizer]
        figure = f"p99 of small sessions beside eight of 128k, full R3{limits.mark}"
        rows.append(_build(figure, "ms", "", limits.beside_ms, found.served.beside.p99_ms))
    return rows


def _check_case(result: CaseResult, limits: Limits) -> list[BudgetRow]:
    case = result.case
    if case.sessions == 1:
        return _check_single(result, limits)
    if case.sessions != 16 or case.rows is not Rows.NONE:
        return []
    if case.think_s:
        return [
            _build(
                f"{name} added at 16 thinking sessions{limits.mark}",
                "ms",
                _REFERENCE_ADDED[name],
                limit,
                result.median_of(f"added_{name}_ms"),
            )
            for name, limit in limits.added_ms.items()
        ]
    speed = result.median_of("served.turns_per_s")
    figure = f"turns at 16 sessions{limits.mark}"
    return [replace(_build(figure, "1/s", "32-37", limits.turns_per_s, speed), is_floor=True)]


def _check_single(result: CaseResult, limits: Limits) -> list[BudgetRow]:
    kind, mark = result.case.rows, limits.mark
    rows = [
        _build(
            f"CPU a turn, R3 {kind}{mark}", "ms", _REFERENCE_CPU[kind], limits.cpu_ms[kind], result.median_of("cpu_ms")
        )
    ]
    if mark:
        return rows
    collected_ms = result.collected.median_ms
    rows.append(_build(f"samples, R3 {kind}", "ms", _REFERENCE_SAMPLES[kind], SAMPLES_MS[kind], collected_ms))
    if kind is not Rows.NONE:
        rows.append(_build(f"retained by a session, R3 {kind}", "MiB", "74-690", RETAINED_MIB, result.retained_mib))
    return rows


def _build(figure: str, unit: str, reference: str, limit: float, measured: float) -> BudgetRow:
    return BudgetRow(figure=figure, unit=unit, reference=reference, limit=limit, measured=measured)


def _is_plain(result: CaseResult) -> bool:
    case = result.case
    return (
        case.talk is SHORT
        and case.model == "Qwen3-30B-A3B"
        and case.history is HistoryKind.LINEAR
        and not case.is_streamed
    )
