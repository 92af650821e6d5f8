"""``turnkeeper config``.

1. show prints every option's value and where it came from, and what follows from them; secrets stay hidden.
2. check prints everything that is broken and ends with 2; warnings alone end with 0.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turnkeeper.cli.config import app
from turnkeeper.config.option import OPTIONS


def invoke(*words: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", **(environment or {})})
    return result.exit_code, result.stdout, result.stderr


def test_show_prints_every_value_and_its_origin(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('tito-model = "qwen3"\n')
    status, out, _ = invoke(
        "show",
        "--gate-timeout",
        "30",
        "--config",
        str(tmp_path / "c.toml"),
        "--json",
        environment={"TURNKEEPER_MAX_SESSIONS": "5"},
    )
    shown = json.loads(out)["options"]
    assert status == 0
    assert list(shown) == [option.key for option in OPTIONS]
    assert shown["gate-timeout"] == {"value": 30.0, "from": "--gate-timeout"}
    assert shown["max-sessions"] == {"value": 5, "from": "TURNKEEPER_MAX_SESSIONS"}
    assert shown["tito-model"] == {"value": "qwen3", "from": str(tmp_path / "c.toml")}
    assert shown["on-abort"] == {"value": "restart", "from": "default"}


def test_show_as_a_table_has_a_row_for_every_option() -> None:
    status, out, _ = invoke("show", "--hf-checkpoint", "/c")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert status == 0
    assert rows["hf-checkpoint"] == ["/c", "--hf-checkpoint"]
    assert {option.key for option in OPTIONS} <= set(rows)


def test_show_prints_what_follows_from_the_options() -> None:
    _, out, _ = invoke("show", "--use-session-server", "v2", "--session-server-workers", "2", "--json")
    assert {name: fact["value"] for name, fact in json.loads(out)["derived"].items()} == {
        "history": "tree",
        "tools-change": "fork",
        "truncated": "close",
        "rows-asked-for": "all",
        "wire": "chat, or generate under prefill/decode disaggregation",
        "turn-timeout": 3600,
        "ports": [30100, 30101],
    }


def test_show_hides_keys() -> None:
    _, out, _ = invoke("show", "--api-key", "s3cret", "--json")
    assert "s3cret" not in out
    assert json.loads(out)["options"]["api-key"]["value"] == ["***"]


def test_check_prints_everything_that_is_broken() -> None:
    status, out, err = invoke("check", "--backend-url", "http://e:1", "--request-timeout", "500")
    assert (status, out) == (2, "")
    assert [line.split(": ")[:2] for line in err.splitlines()] == [
        ["turnkeeper", "warning"],
        ["turnkeeper", "error"],
        ["turnkeeper", "error"],
    ]


def test_check_is_content_with_warnings() -> None:
    status, out, err = invoke("check", "--backend-url", "http://e:1", "--hf-checkpoint", "/c")
    assert (status, out) == (0, "the options go together\n")
    assert err.startswith("turnkeeper: warning: --tito-model default")


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_value_that_cannot_be_read_ends_both(command: str) -> None:
    status, out, err = invoke(command, "--gate-timeout", "soon")
    assert (status, out) == (2, "")
    assert err == "turnkeeper: error: --gate-timeout should be a valid number, got 'soon'\n"


def test_check_says_the_same_to_programs() -> None:
    status, out, err = invoke("check", "--backend-url", "http://e:1", "--request-timeout", "500", "--json")
    found = json.loads(out)
    assert (status, err) == (2, "")
    assert (len(found["errors"]), len(found["warnings"])) == (2, 1)
    status, out, _ = invoke("check", "--backend-url", "http://e:1", "--hf-checkpoint", "/c", "--json")
    assert (status, json.loads(out)["errors"]) == (0, [])


def test_a_table_that_is_piped_is_not_cut() -> None:
    environment = dict.fromkeys(("NO_COLOR",), "")
    long = "/models/" + "x" * 300
    result = CliRunner().invoke(app, ["show", "--hf-checkpoint", long], env={**environment, "COLUMNS": None})
    assert f"{long}  " in result.stdout


def test_a_wire_that_was_chosen_is_shown() -> None:
    _, out, _ = invoke("show", "--engine-wire", "chat", "--json")
    assert json.loads(out)["derived"]["wire"]["value"] == "chat"
