"""The engine's bench: it measures every batch size that has a goal, and the table shows figure and goal."""

from io import StringIO

from rich.console import Console

from benchmarks.engine import GOALS, Speed, measure, render_table
from tiny.builders import MODELS


def test_a_measurement_counts_whole_steps() -> None:
    speed = measure(MODELS[0], batch=2, repeats=1)
    assert speed.batch == 2
    assert 0 < speed.slowest_tokens_s == speed.decode_tokens_s
    assert speed.prefill_tokens_s > 0


def test_the_table_shows_figures_beside_their_goals() -> None:
    speeds = [
        Speed(batch=batch, prefill_tokens_s=1, decode_tokens_s=1234.4, slowest_tokens_s=1000) for batch in (1, *GOALS)
    ]
    out = StringIO()
    Console(file=out, width=120).print(render_table(speeds))
    rows = [line for line in out.getvalue().splitlines() if "1,234" in line]
    assert len(rows) == 3
    assert "600" in rows[1]
    assert "900" in rows[2]
