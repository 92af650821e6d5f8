"""The measurement of samples and rows runs, and its sessions are whole."""

from benchmarks.samples import build_rows, build_session, run


def test_every_step_is_measured() -> None:
    figures = run(tokens=64, turns=3, runs=2)
    assert len(figures) == 5
    assert all(0 < figure.least_ms <= figure.median_ms for figure in figures)


def test_the_session_has_the_length_that_is_asked_for() -> None:
    session = build_session(50, 4, build_rows(50))
    assert [turn.path_tokens for turn in session.forest.turns] == [12, 25, 37, 50]
