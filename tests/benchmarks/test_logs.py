"""The benchmark of the log.

1. Every server is measured in every round, and compared within the rounds.
2. Over the rounds no server always comes first.
"""

from pathlib import Path

import pytest

from benchmarks.logs import BASE, LogFigures, compare, measure, order_round, render
from turnkeeper.bench.scenario import Case
from turnkeeper.bench.stack import Material
from turnkeeper.tiny.checkpoint import shipped_checkpoint


async def test_every_server_is_measured_in_every_round(tmp_path: Path) -> None:
    material = Material.read(shipped_checkpoint(), tmp_path, seed=0)
    measured = await measure(Case(sessions=1, turns=1), material, {BASE: ("--log-level", "error"), "info": ()}, 2)
    assert [len(figures.cpu_ms) for figures in measured.values()] == [2, 2]
    assert all(figure > 0 for figures in measured.values() for figure in (*figures.cpu_ms, *figures.turns_per_s))
    assert next(column.header for column in render(measured).columns) == "log"


def test_figures_are_compared_within_their_rounds() -> None:
    base = LogFigures(cpu_ms=(1.0, 10.0, 2.0), turns_per_s=(1.0, 1.0, 1.0))
    mine = LogFigures(cpu_ms=(1.01, 10.2, 2.02), turns_per_s=(1.0, 1.0, 1.0))
    assert compare(mine, base) == pytest.approx(1.0)


def test_no_server_always_comes_first() -> None:
    firsts = [order_round(["a", "b", "c"], number)[0] for number in range(12)]
    assert {firsts.count(name) for name in "abc"} == {4}
