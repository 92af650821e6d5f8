"""The budget: what a turn may cost, compared with the figures that were measured.

Times are judged in yardsticks (`turnkeeper.bench.yardstick`) or against the mock engine hit directly, both measured in
the same run, so that a slow machine does not miss a budget that a fast one meets. Memory is judged in MiB.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from turnkeeper.bench.beside import BesideResult
from turnkeeper.bench.comparison import ComparisonResult
from turnkeeper.bench.load.workload import SHORT
from turnkeeper.bench.measure import CaseResult
from turnkeeper.bench.scenario import Rows
from turnkeeper.choices import HistoryKind, TokenizerBackend

YARDSTICKS = "yardsticks"
"""The unit of a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One figure."""

    figure: str
    unit: str
    limit: float
    measured: float
    is_floor: bool = False
    """Whether more is better."""
    noise: tuple[float, float] | None = None
    """The interval that the figure lies in, where it is known."""

    @property
    def is_met(self) -> bool:
        """True if the figure is within the budget."""
        return self.measured >= self.limit if self.is_floor else self.measured <= self.limit

    @property
    def is_certain(self) -> bool:
        """False where noise alone may have decided: the limit lies in the interval of the figure."""
        return self.noise is None or not self.noise[0] <= self.limit <= self.noise[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """The limits with one tokenizer: the figures of an older commit, and about a quarter more."""

    mark: str
    """Behind the names of its figures."""
    cpu: Mapping[Rows, float]
    """CPU time of a turn, in yardsticks."""
    turns: float
    """Turns that 16 sessions without rows take in the time of one yardstick, at least."""
    added: Mapping[str, float]
    """What a turn takes longer than the mock at 16 thinking sessions, in yardsticks, by quantile."""
    rest_mib: float
    """Resident before the first turn."""
    beside: float
    """The p99 of small sessions beside large ones, in those of the mock hit directly."""


LIMITS: Mapping[TokenizerBackend, BudgetLimits] = {
    TokenizerBackend.TOKENIZERS: BudgetLimits(
        mark="",
        cpu={Rows.NONE: 2.0, Rows.INCREMENTAL: 1.8, Rows.FULL: 0.35},
        turns=0.6,
        added={"p50": 3.5, "p99": 10.0},
        rest_mib=230.0,
        beside=2.5,
    ),
    TokenizerBackend.FASTOKENS: BudgetLimits(
        mark=", fastokens",
        cpu={Rows.NONE: 1.0, Rows.INCREMENTAL: 0.9, Rows.FULL: 0.45},
        turns=0.9,
        added={"p50": 1.7, "p99": 6.0},
        rest_mib=260.0,
        beside=2.0,
    ),
}

SAMPLES = {Rows.NONE: 12.0, Rows.INCREMENTAL: 14.0, Rows.FULL: 2.0}
"""The time of a collect, in yardsticks."""
RETAINED_MIB = 20.0
FIRST_TURN_LOADS = 4.0
"""From the start of the process to its first reply, in times that the bench itself takes to load the tokenizer."""


def check_budget(
    results: Sequence[CaseResult], beside: Sequence[BesideResult] = (), *, load_s: float = 0.0
) -> list[BudgetRow]:
    """Return the rows for which there are figures.

    Args:
        results: of the cases.
        beside: of small sessions beside large ones.
        load_s: how long the bench took to load the tokenizer, in seconds; 0 leaves the time of the first turn out.
    """
    rows: list[BudgetRow] = []
    for backend, limits in LIMITS.items():
        of_backend = [result for result in results if result.case.tokenizer is backend]
        for result in filter(_is_plain, of_backend):
            rows += _check_case(result, limits)
        if of_backend:
            rest = median(result.rest_mib for result in of_backend)
            rows.append(_build("resident at rest" + limits.mark, "MiB", limits.rest_mib, rest))
    served = [result.first_turn_s for result in results if result.case.tokenizer is TokenizerBackend.TOKENIZERS]
    if served and load_s:
        rows.append(_build("start to first turn", "tokenizer loads", FIRST_TURN_LOADS, median(served) / load_s))
    for found in beside:
        limits = LIMITS[found.plan.tokenizer]
        figure = f"p99 of small sessions beside eight of 128k, full R3{limits.mark}"
        ratio = found.served.beside.p99_ms / found.direct.beside.p99_ms
        rows.append(_build(figure, "x mock", limits.beside, ratio))
    return rows


def check_comparisons(results: Sequence[ComparisonResult]) -> list[BudgetRow]:
    """Return a row for each limit of a variant."""
    rows: list[BudgetRow] = []
    for result in results:
        for variant in result.comparison.variants:
            for measure, limit in variant.limits.items():
                found = result.compare(variant.name, measure)
                rows.append(
                    BudgetRow(
                        figure=f"{result.comparison.name}: {variant.name}",
                        unit=measure,
                        limit=limit,
                        measured=found.median,
                        noise=(found.low, found.high),
                    )
                )
    return rows


def _check_case(result: CaseResult, limits: BudgetLimits) -> list[BudgetRow]:
    case = result.case
    if case.sessions == 1:
        return _check_single(result, limits)
    if case.sessions != 16 or case.rows is not Rows.NONE:
        return []
    if case.think_s:
        return [
            _build(
                f"{name} added at 16 thinking sessions{limits.mark}",
                YARDSTICKS,
                limit,
                result.median_of(f"added_{name}_ms") / result.yardstick_ms,
            )
            for name, limit in limits.added.items()
        ]
    turns = result.median_of("served.turns_per_s") * result.yardstick_ms / 1e3
    figure = f"turns at 16 sessions{limits.mark}"
    return [BudgetRow(figure=figure, unit="a yardstick", limit=limits.turns, measured=turns, is_floor=True)]


def _check_single(result: CaseResult, limits: BudgetLimits) -> list[BudgetRow]:
    kind, mark = result.case.rows, limits.mark
    rows = [_build(f"CPU a turn, R3 {kind}{mark}", YARDSTICKS, limits.cpu[kind], result.cpu_yardsticks)]
    if mark:
        return rows
    collected = result.collected.median_ms / result.yardstick_ms
    rows.append(_build(f"samples, R3 {kind}", YARDSTICKS, SAMPLES[kind], collected))
    if kind is not Rows.NONE:
        rows.append(_build(f"retained by a session, R3 {kind}", "MiB", RETAINED_MIB, result.retained_mib))
    return rows


def _build(figure: str, unit: str, limit: float, measured: float) -> BudgetRow:
    return BudgetRow(figure=figure, unit=unit, limit=limit, measured=measured)


def _is_plain(result: CaseResult) -> bool:
    case = result.case
    return (
        case.talk is SHORT
        and case.model == "Qwen3-30B-A3B"
        and case.history is HistoryKind.LINEAR
        and not case.is_streamed
        and not case.has_keys
    )
