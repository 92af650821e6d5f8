"""``turnkeeper serve``, as far as it goes without serving.

1. The group passes its words through: help, unknown flags and rules are those of the options.
2. Everything that cannot work ends it with 2 before anything starts.
"""

import pytest
from typer.testing import CliRunner

from turnkeeper.cli.main import app


def invoke(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["serve", *words], env={"COLUMNS": "120"})
    return result.exit_code, result.stdout, result.stderr


def test_help_shows_the_three_options_to_set_first() -> None:
    status, out, _ = invoke("--help")
    assert status == 0
    assert "turnkeeper serve --hf-checkpoint DIR --tito-model NAME --backend-url URL" in out
    assert "--gate-timeout" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(["--max-weight-staleness", "2"], "--max-weight-staleness belongs to the trainer", id="trainers"),
        pytest.param(["--partial-rollout"], "--use-session-server does not go with --partial-rollout", id="rule"),
        pytest.param(["--session-server-port", "1", "2"], "takes one start port, got 1 2", id="two-ports"),
        pytest.param(
            ["--use-session-server", "v3"], "--use-session-server v3 is no session server version", id="version"
        ),
        pytest.param(["--mask-offpolicy-in-partial-rollout"], "does nothing without --partial-rollout", id="mask"),
        pytest.param(["--gate-timeot", "3"], "turnkeeper serve has no option --gate-timeot", id="unknown-flag"),
        pytest.param(["--hf-checkpoint", "/nowhere"], "/nowhere is no folder", id="no-checkpoint"),
    ],
)
def test_what_cannot_work_ends_with_2_and_says_why(words: list[str], says: str) -> None:
    status, out, err = invoke("--backend-url", "http://127.0.0.1:9", "--tito-model", "qwen3", *words)
    assert (status, out) == (2, "")
    assert any(line.startswith("turnkeeper: error: ") and says in line for line in err.splitlines())
