"""``turnkeeper verify``.

1. A family that holds what it promises: exit status 0. One that does not: 1, the first differing text, and what would
   fix it. A folder or an option that cannot be used: 2.
2. ``--json`` says the same to programs.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rendering.standins import find_template, tokenizer_json
from turnkeeper.cli.main import app
from turnkeeper.config.option import BY_ATTRIBUTE


def build_folder(place: Path, template: str | None) -> Path:
    """A checkpoint folder with the stand-in tokenizer."""
    (place / "tokenizer.json").write_bytes(tokenizer_json())
    if template is not None:
        (place / "chat_template.jinja").write_text(template, encoding="utf-8")
    return place


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_folder(tmp_path, find_template("qwen3"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_a_family_that_holds_its_promise_ends_with_0(folder: Path) -> None:
    result = run(str(folder), "--tito-model", "qwen3")
    assert result.exit_code == 0, result.output
    assert "qwen3 on" in result.output
    assert "two tool results" in result.output
    assert "would drop the thinking of 3 earlier turns" in result.output


def test_one_that_does_not_ends_with_1_and_names_the_cure(folder: Path) -> None:
    result = run(str(folder))
    assert result.exit_code == 1
    assert "in place" in result.output
    assert "--tito-model qwen3" in result.output


def test_json_says_it_to_programs(folder: Path) -> None:
    result = run(str(folder), "--json")
    report = json.loads(result.stdout)
    findings = {finding["case"]: finding for finding in report["findings"]}
    assert (report["family"], report["is_sound"]) == ("default", False)
    assert findings["tool result"]["outcome"] == "holds"
    assert findings["user"]["outcome"] == "differs"
    assert "--tito-model qwen3" in findings["user"]["cures"]


def test_the_argument_that_fixes_it_is_proposed(tmp_path: Path) -> None:
    result = run(str(build_folder(tmp_path, find_template("glm47"))), "--json")
    cures = {cure for finding in json.loads(result.stdout)["findings"] for cure in finding["cures"]}
    assert "--apply-chat-template-kwargs '{\"clear_thinking\": false}'" in cures
    assert "--tito-model glm47" in cures


def test_another_models_family_is_found_out(folder: Path) -> None:
    result = run(str(folder), "--tito-model", "qwen35")
    assert result.exit_code == 1
    assert "one tool cycle, as the template" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tito-model", "qwen"], "--tito-model"),
        (["--apply-chat-template-kwargs", "{"], "--apply-chat-template-kwargs"),
        (["--apply-chat-template-kwargs", "[]"], "--apply-chat-template-kwargs"),
        (["--chat-template-path", "nowhere.jinja"], "--chat-template-path"),
        (["--tito-model", "glm47", "--apply-chat-template-kwargs", '{"clear_thinking": true}'], "clear_thinking"),
    ],
    ids=["an unknown family", "no JSON", "no object", "no template file", "a contradiction"],
)
def test_an_option_that_cannot_be_used_ends_with_2(folder: Path, arguments: list[str], said: str) -> None:
    result = run(str(folder), *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_an_option_may_come_from_the_environment(folder: Path) -> None:
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TURNKEEPER_TITO_MODEL": "qwen3"}
    result = CliRunner().invoke(app, ["verify", str(folder)], env=environment)
    assert result.exit_code == 0, result.output
    assert "qwen3 on" in result.output


def test_help_says_of_an_option_what_serve_says_of_it() -> None:
    text = " ".join(run("--help").output.replace("│", " ").split())
    for name in ("tito_model", "chat_template_path", "apply_chat_template_kwargs"):
        option = BY_ATTRIBUTE[name]
        assert option.flag in text
        assert option.help in text


def test_a_folder_without_template_ends_with_2(tmp_path: Path) -> None:
    result = run(str(build_folder(tmp_path, None)), "--tito-model", "qwen3")
    assert result.exit_code == 2
    assert "--chat-template-path" in result.output
