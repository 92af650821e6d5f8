"""The options of `turnkeeper.config` on a command of the command line: help in panels, errors on stderr.

A command that takes all of them passes its words through (`PASS_THROUGH`, and ``add_help_option=False``) and hands them
to `read_options`; a command that takes a few asks `declare` for each.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from turnkeeper.config.option import BY_ATTRIBUTE, SHOWN_OPTIONS, Option, get_section_summary, get_section_title
from turnkeeper.config.resolve import ResolvedConfig, resolve_command_line
from turnkeeper.errors import ConfigError

PASS_THROUGH: dict[Any, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that takes the options."""

_PANELS = ("model", "engine", "server", "history", "routing", "timeouts", "limits", "log")


def read_options(arguments: Sequence[str], *, program: str, summary: str) -> ResolvedConfig:
    """Read a command's words, or end the process: with the help that they ask for, or with what is wrong.

    Args:
        arguments: the words behind the command's name.
        program: the command as it is called.
        summary: one sentence for the help.

    Raises:
        typer.Exit: 0 after help, 2 after errors, all of them on stderr.
    """
    if "--help" in arguments or "-h" in arguments:
        print_help(program, summary)
    try:
        return resolve_command_line(arguments, program=program)
    except ConfigError as error:
        end_with_error(str(error))


def declare(attribute: str) -> Any:
    """Declare one of the server's options on another command, for typer: with the same flag, help and default.

    The command passes what it gets to `turnkeeper.config.load.load`, which also reads environment and file.
    """
    option = BY_ATTRIBUTE[attribute]
    return typer.Option(
        option.flag, metavar=option.metavar, help=option.help, show_default=option.default_text or False
    )


def print_help(program: str, summary: str) -> NoReturn:
    """Print the options and end the process with 0."""
    Console().print(render_help(program, summary))
    raise typer.Exit


def end_with_error(text: str) -> NoReturn:
    """Print each line as an error on stderr and end the process with 2."""
    for line in text.splitlines():
        typer.echo(f"error: {line}", err=True)
    raise typer.Exit(2)


def render_help(program: str, summary: str) -> Group:
    """Render the options, one panel for each section that a server reads."""
    example = f"{program} --hf-checkpoint DIR --tito-model NAME --backend-url URL"
    return Group(
        Text(f"\n {summary}\n"),
        Text.assemble(" Usage: ", (f"{program} [OPTIONS]", "bold"), "   most often:\n   ", example, "\n"),
        *(_render_panel(section) for section in _PANELS),
        Text(
            " Every option is also an environment variable (--gate-timeout: TURNKEEPER_GATE_TIMEOUT) and a key of the\n"
            " TOML file that --config names (gate-timeout). Flags win over the environment, that over the file.\n"
        ),
    )


def _render_panel(section: str) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for option in SHOWN_OPTIONS:
        if option.section == section:
            table.add_row(Text(option.flag), _render_text(option))
    return Panel(
        Group(Text(get_section_summary(section), style="dim"), table),
        title=get_section_title(section),
        title_align="left",
    )


def _render_text(option: Option) -> Text:
    text = Text()
    if option.metavar:
        text.append(f"{option.metavar}  ", style="bold yellow")
    text.append(option.help)
    if option.default_text:
        text.append(f" [default: {option.default_text}]", style="dim")
    return text
