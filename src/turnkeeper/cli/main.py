"""The ``turnkeeper`` command group.

A module of a command holds its options; what the command runs is imported when it runs. So ``--help``, ``--version``
and the completion of a shell import next to nothing.
"""

from typing import Any

import typer

from turnkeeper import __version__
from turnkeeper.cli import config
from turnkeeper.cli.bench import bench
from turnkeeper.cli.demo import demo
from turnkeeper.cli.ending import CommandGroup
from turnkeeper.cli.engine import engine
from turnkeeper.cli.serve import serve
from turnkeeper.cli.sessions import explain, sessions, show
from turnkeeper.cli.store.collect import collect
from turnkeeper.cli.store.export import export
from turnkeeper.cli.store.removal import delete, vacuum
from turnkeeper.cli.verify import verify

HELP_NAMES: dict[str, Any] = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="turnkeeper",
    cls=CommandGroup,
    help="The session server for agentic reinforcement learning.",
    context_settings=HELP_NAMES,
    rich_markup_mode=None,  # its help takes longer to import than to read
    pretty_exceptions_enable=False,
)
app.command(context_settings=config.PASS_THROUGH, add_help_option=False)(serve)
app.command()(collect)
app.command()(delete)
app.command()(engine)
app.command()(explain)
app.command()(export)
app.command()(sessions)
app.command()(show)
app.command()(vacuum)
app.command()(verify)
app.add_typer(config.app, name="config")
app.command()(demo)
app.command()(bench)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """The session server for agentic reinforcement learning."""


def main() -> None:
    """Run the command line, and end the process."""
    app(prog_name="turnkeeper")
