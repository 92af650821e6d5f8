"""``turnkeeper bench --only``.

1. A text that no case's name holds is an error that names the cases, before anything is started.
"""

import pytest
from typer.testing import CliRunner

from turnkeeper.bench.scenario import QUICK, list_all
from turnkeeper.cli.main import app


@pytest.mark.parametrize("only", ["nothing of the kind", "*", "Small Sessions", " " * 9])
@pytest.mark.parametrize("full", [False, True])
def test_only_without_a_match_names_the_cases(only: str, full: bool) -> None:
    cases = list_all() if full else QUICK
    outcome = CliRunner().invoke(app, ["bench", "--only", only, *(["--full"] if full else [])])
    assert outcome.exit_code == 2
    assert only in outcome.stderr
    assert all(case.name in outcome.stderr for case in cases)
    assert outcome.stdout == ""
