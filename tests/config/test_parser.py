"""Flags out of the options.

1. Our own command line returns what was written and nothing else.
2. A trainer's parser gets every option it does not have yet, typed, with defaults that the environment may set.
"""

import argparse
from pathlib import Path

import pytest

from turnkeeper.choices import PauseMode
from turnkeeper.config.option import OPTIONS
from turnkeeper.config.parser import add_arguments, parse_flags
from turnkeeper.errors import ArgumentErrors, ConfigError


def test_only_what_was_written_is_returned() -> None:
    words = "--backend-url http://a --backend-url http://b --use-session-server --no-strict-probe --config c.toml"
    assert parse_flags(words.split(), program="p") == (
        {"backend_url": ["http://a", "http://b"], "use_session_server": "v1", "strict_probe": False},
        Path("c.toml"),
    )


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        ("--gate-timeou 3", "turnkeeper serve has no option --gate-timeou", "did you mean --gate-timeout?"),
        ("--model x", "turnkeeper serve has no option --model", "did you mean --hf-checkpoint?"),
        ("--xyzzy 3", "turnkeeper serve has no option --xyzzy", "`turnkeeper serve --help` lists the options"),
        (
            "--gate-timeout",
            "argument --gate-timeout: expected one argument",
            "`turnkeeper serve --help` lists the options",
        ),
        ("serve", "serve belongs to no option", "`turnkeeper serve --help` says how options are written"),
    ],
    ids=["slip", "other-name", "unknown", "no-value", "stray-word"],
)
def test_a_command_line_that_cannot_be_read_is_refused(words: str, problem: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_flags(words.split(), program="turnkeeper serve")
    assert caught.value.message == problem
    assert caught.value.hint == hint


def test_a_trainers_parser_gets_every_option() -> None:
    arguments = add_arguments(argparse.ArgumentParser(), environment={}).parse_args([])
    assert set(vars(arguments)) == {option.attribute for option in OPTIONS}
    assert arguments.pause_generation_mode is PauseMode.RETRACT
    assert arguments.session_server_port is None


def test_a_trainers_help_groups_the_options_by_section() -> None:
    text = add_arguments(argparse.ArgumentParser(), environment={}).format_help()
    assert [title for title in ("Model:", "Engine:", "Routing replay:", "Trainer:") if f"\n{title}\n" not in text] == []
    assert "--use-session-server [v1|v2]" in text


def test_a_trainers_values_are_typed() -> None:
    parser = add_arguments(argparse.ArgumentParser(), environment={})
    words = ["--use-session-server", "v2", "--session-server-port", "31000", "--gate-timeout", "5"]
    arguments = parser.parse_args([*words, "--apply-chat-template-kwargs", '{"a": 1}'])
    assert arguments.use_session_server == "v2"
    assert arguments.session_server_port == [31000]
    assert arguments.gate_timeout == 5.0
    assert arguments.apply_chat_template_kwargs == {"a": 1}


def test_flags_that_the_trainer_has_stay_as_they_are() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-seq-len", type=int, default=77)
    assert add_arguments(parser, environment={}).parse_args([]).max_seq_len == 77


def test_the_environment_sets_a_trainers_defaults() -> None:
    parser = add_arguments(argparse.ArgumentParser(), environment={"TURNKEEPER_ON_ABORT": "fail"})
    assert parser.parse_args([]).on_abort == "fail"
    assert parser.parse_args(["--on-abort", "resume"]).on_abort == "resume"


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ArgumentErrors, match=r"--on-abort \(from TURNKEEPER_ON_ABORT\)"):
        add_arguments(argparse.ArgumentParser(), environment={"TURNKEEPER_ON_ABORT": "never"})


def test_a_bad_value_is_refused_by_the_trainers_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        add_arguments(argparse.ArgumentParser(), environment={}).parse_args(["--gate-timeout", "soon"])
    assert "argument --gate-timeout: should be a valid number, got 'soon'" in capsys.readouterr().err
