"""The options on a command of the command line.

1. --help lists every option that a server reads, and ends the process with 0.
2. What is wrong goes to stderr, one line each, and ends the process with 2.
"""

import pytest
import typer

from turnkeeper.cli.options import read_options
from turnkeeper.config.option import OPTIONS, SHOWN_OPTIONS


def read(words: str) -> None:
    read_options(words.split(), program="turnkeeper serve", summary="Serve.")


def test_help_lists_every_option_that_a_server_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(typer.Exit) as caught:
        read("--port 1 --help")
    assert caught.value.exit_code == 0
    text = capsys.readouterr().out
    assert [option.flag for option in SHOWN_OPTIONS if option.section != "trainer" and option.flag not in text] == []
    assert [option.flag for option in OPTIONS if option.is_hidden and f"{option.flag} " in text] == []


def test_what_is_wrong_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught:
        read("--gate-timeout soon --max-sessions 0")
    assert caught.value.exit_code == 2
    assert capsys.readouterr() == (
        "",
        "error: --gate-timeout should be a valid number, got 'soon'\n"
        "error: --max-sessions should be greater than or equal to 1, got '0'\n",
    )
