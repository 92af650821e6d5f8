"""The options of `turnkeeper.config` on a command that takes all of them: Typer passes its words through to here."""

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import NoReturn

import typer

from turnkeeper.config.option import SHOWN_OPTIONS, Option, get_section_summary, get_section_title

_SECTIONS = ("model", "engine", "server", "history", "routing", "timeouts", "limits", "log", "store")

_INDENT = " " * 6
_WIDEST = 110


def is_help_asked(arguments: Sequence[str]) -> bool:
    """Return True if the words ask for help."""
    return "--help" in arguments or "-h" in arguments


def print_help(program: str, summary: str, *, extra: Iterable[tuple[str, str]] = ()) -> NoReturn:
    """Print the options and end the process with 0."""
    typer.echo(render_help(program, summary, extra=extra))
    raise typer.Exit


def render_help(program: str, summary: str, *, extra: Iterable[tuple[str, str]] = ()) -> str:
    """Render the options, section by section.

    Args:
        program: the command as it is called.
        summary: one sentence on what it does.
        extra: flags of the command's own, with their help.
    """
    width = min(shutil.get_terminal_size((_WIDEST, 0)).columns, _WIDEST)
    lines = [f"Usage: {program} [OPTIONS]", "", f"  {summary}", ""]
    lines += ["  Most often:", f"  {program} --hf-checkpoint DIR --tito-model NAME --backend-url URL"]
    for section in _SECTIONS:
        lines += ["", f"{get_section_title(section)}:", *_wrap(get_section_summary(section), width, "  ")]
        for option in SHOWN_OPTIONS:
            if option.section == section:
                lines += [f"  {option.flag} {option.metavar}".rstrip(), *_wrap(_describe(option), width, _INDENT)]
    lines += ["", "Others:"]
    own = (("--config FILE", "A TOML file of options."), *extra, ("-h, --help", "Show this message and exit."))
    for flag, text in own:
        lines += [f"  {flag}", *_wrap(text, width, _INDENT)]
    ending = (
        "Every option is also an environment variable (--gate-timeout: TURNKEEPER_GATE_TIMEOUT) and a key of the TOML "
        "file that --config names (gate-timeout). Flags win over the environment, that over the file."
    )
    return "\n".join([*lines, "", *_wrap(ending, width, "")])


def _describe(option: Option) -> str:
    return f"{option.help} [default: {option.default_text}]" if option.default_text else option.help


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
