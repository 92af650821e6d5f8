"""The help of a command that takes the options of the server.

1. It lists every option that a server reads, with its help and its default, in plain text that no width cuts.
"""

import pytest

from turnkeeper.cli.options import is_help_asked, render_help
from turnkeeper.config.option import OPTIONS, SHOWN_OPTIONS


def test_help_lists_every_option_that_a_server_reads() -> None:
    text = render_help("turnkeeper serve", "Serve.")
    flags = [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
    shown = [option for option in SHOWN_OPTIONS if option.section != "trainer"]
    assert sorted(flags) == sorted([*(option.flag for option in shown), "--config"])
    assert not {option.flag for option in OPTIONS if option.is_hidden} & set(flags)


@pytest.mark.parametrize("columns", ["40", "80", "300"])
def test_no_width_cuts_a_help_text(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    words = " ".join(render_help("turnkeeper serve", "Serve.").split())
    assert [option.flag for option in SHOWN_OPTIONS if option.section != "trainer" and option.help not in words] == []


def test_options_of_the_command_itself_are_listed() -> None:
    assert "  --json\n      Print JSON.\n" in render_help(
        "turnkeeper config show", "Show.", extra=[("--json", "Print JSON.")]
    )


@pytest.mark.parametrize(
    ("words", "asked"), [("--help", True), ("--port 1 -h", True), ("--port 1", False), ("", False)]
)
def test_help_is_asked_for_by_either_flag(words: str, asked: bool) -> None:
    assert is_help_asked(words.split()) is asked
