"""Options of the server beside each other, in the bench. Nothing here is timed.

1. Every server is measured in every round, with the flags and the company that it asks for.
2. Over the rounds no server always comes first.
3. A figure is compared with the base's of the same round, and more is worse in each measure.
4. The interval of a median holds it with the probability that it says, whatever the distribution.
5. The budget has a row for each limit, which says whether noise alone may have decided.
6. A report has every comparison, as JSON and as tables.
"""

import json
from math import comb
from pathlib import Path

import pytest
from rich.console import Console

from turnkeeper.bench.budget import check_comparisons
from turnkeeper.bench.comparison import (
    Comparison,
    ComparisonResult,
    Measure,
    PairedDifference,
    Play,
    Variant,
    order_round,
    summarize_differences,
)
from turnkeeper.bench.groups import COMPARISONS
from turnkeeper.bench.load.workload import Talk
from turnkeeper.bench.scenario import Case, list_all
from turnkeeper.bench.server import run_server_bench
from turnkeeper.tiny.checkpoint import shipped_checkpoint

TALK = Talk(name="tiny", turns=1, first_tokens=300, prompt_tokens=60, reply_tokens=60)
BASE = Variant(name="plain")


def build_play(cpu_ms: float, loop_ms: float = 1.0, turns_per_s: float = 1.0, p99_ms: float = 1.0) -> Play:
    return Play(cpu_ms=cpu_ms, loop_ms=loop_ms, turns_per_s=turns_per_s, p99_ms=p99_ms)


def build_result(plays: list[Play], base: list[Play], limits: dict[Measure, float] | None = None) -> ComparisonResult:
    mine = Variant(name="mine", limits=limits or {})
    comparison = Comparison(name="group", case=Case(sessions=1), base=BASE, variants=(mine,))
    return ComparisonResult(comparison=comparison, plays={"plain": tuple(base), "mine": tuple(plays)}, yardstick_ms=2.0)


def test_every_server_is_measured_in_every_round_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnkeeper.bench.comparison.SCRAPE_S", 0.001)
    comparison = Comparison(
        name="tiny group",
        case=Case(sessions=1, talk=TALK),
        base=BASE,
        variants=(
            Variant(name="scraped", is_scraped=True),
            Variant(
                name="traced and stored",
                flags=("--trace-endpoint", "{collector}", "--store", "{folder}"),
                limits={Measure.CPU: 1e9},
            ),
        ),
        rounds=2,
    )
    begun: list[str] = []
    report = run_server_bench(
        [],
        checkpoint=shipped_checkpoint(),
        seed=7,
        comparisons=[comparison],
        on_comparison=lambda each: begun.append(each.name),
    )
    assert begun == ["tiny group"]
    told = json.loads(json.dumps(report.to_json()))
    (shown,) = told["comparisons"]
    assert [server["name"] for server in shown["servers"]] == ["plain", "scraped", "traced and stored"]
    for server in shown["servers"]:
        assert len(server["plays"]) == 2
        assert all(
            play[figure] > 0 for play in server["plays"] for figure in ("cpu_ms", "loop_ms", "turns_per_s", "p99_ms")
        )
        assert set(server["more"]) == {measure.value for measure in Measure}
    assert [(row["figure"], row["is_met"]) for row in told["budget"]] == [("tiny group: traced and stored", True)]
    with (tmp_path / "tables").open("w") as file:
        report.print(Console(width=300, file=file))
    tables = (tmp_path / "tables").read_text()
    assert all(server.name in tables for server in comparison.servers)


def test_no_server_always_comes_first() -> None:
    firsts = [order_round(["a", "b", "c"], number)[0] for number in range(12)]
    assert {firsts.count(name) for name in "abc"} == {4}


@pytest.mark.parametrize(
    ("measure", "mine", "base", "more"),
    [
        (Measure.CPU, build_play(1.02), build_play(1.0), 2.0),
        (Measure.SPEED, build_play(1, turns_per_s=98), build_play(1, turns_per_s=100), 2.0),
        (Measure.CPU_YARDSTICKS, build_play(1.5), build_play(1.0), 0.25),
        (Measure.LOOP_YARDSTICKS, build_play(9, loop_ms=1.5), build_play(1, loop_ms=1.0), 0.25),
        (Measure.P99, build_play(9, p99_ms=1.5), build_play(1, p99_ms=1.0), 0.25),
    ],
)
def test_more_is_worse_in_every_measure(measure: Measure, mine: Play, base: Play, more: float) -> None:
    assert build_result([mine], [base]).compare("mine", measure).median == pytest.approx(more)


def test_figures_are_compared_within_their_rounds() -> None:
    base = [build_play(cpu_ms) for cpu_ms in (1.0, 10.0, 2.0)]
    mine = [build_play(cpu_ms) for cpu_ms in (1.01, 10.1, 2.02)]
    found = build_result(mine, base).compare("mine", Measure.CPU)
    assert (found.low, found.median, found.high) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize("count", range(1, 40))
def test_the_interval_of_a_median_is_as_narrow_as_its_probability_allows(count: int) -> None:
    """Counted out: the median lies outside ranks r to n - 1 - r if at most r values of n fall on one side of it."""
    found = summarize_differences([float(value) for value in range(count)][::-1])
    outside = [2 * sum(comb(count, below) for below in range(rank + 1)) / 2**count for rank in range(count)]
    allowed = [rank for rank in range((count + 1) // 2) if outside[rank] <= 0.05]
    rank = max(allowed, default=0)
    assert found == PairedDifference(median=(count - 1) / 2, low=rank, high=count - 1 - rank)


@pytest.mark.parametrize(
    ("limit", "is_met", "is_certain"),
    [(0.5, False, True), (2.0, False, False), (4.0, True, False), (9.0, True, True)],
)
def test_a_limit_within_the_noise_is_said_to_be(limit: float, is_met: bool, is_certain: bool) -> None:
    mine = [build_play(100 + number) for number in (1, 2, 3, 4, 5)]
    result = build_result(mine, [build_play(100)] * 5, {Measure.CPU: limit})
    (row,) = check_comparisons([result])
    assert (row.measured, row.is_met, row.is_certain) == (pytest.approx(3.0), is_met, is_certain)


def test_every_comparison_and_server_has_a_name_of_its_own() -> None:
    names = [comparison.name for comparison in COMPARISONS]
    assert len({*names, *(case.name for case in list_all())}) == len(names) + len(list_all())
    for comparison in COMPARISONS:
        assert len({server.name for server in comparison.servers}) == len(comparison.servers)
