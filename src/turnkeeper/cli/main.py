"""The ``turnkeeper`` command group and its exit codes."""

import typer

from turnkeeper import __version__
from turnkeeper.cli import config
from turnkeeper.cli.bench import bench
from turnkeeper.cli.demo import demo
from turnkeeper.cli.engine import engine
from turnkeeper.cli.options import PASS_THROUGH
from turnkeeper.cli.serve import serve
from turnkeeper.cli.sessions import explain, sessions, show
from turnkeeper.cli.verify import verify

app = typer.Typer(
    name="turnkeeper",
    help="The session server for agentic reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(config.app, name="config")
app.command()(bench)
app.command()(demo)
app.command()(engine)
app.command()(explain)
app.command()(sessions)
app.command()(show)
app.command()(verify)
app.command(context_settings=PASS_THROUGH, add_help_option=False)(serve)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """The session server for agentic reinforcement learning."""


def main() -> None:
    """Run the command line."""
    app()
