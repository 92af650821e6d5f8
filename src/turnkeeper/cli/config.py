"""``turnkeeper config``: what ``turnkeeper serve`` would run with, and whether it goes together."""

import json
from typing import TYPE_CHECKING, Any

import typer

from turnkeeper.cli.ending import CommandGroup, fail

if TYPE_CHECKING:
    from turnkeeper.config.load import Loaded

PASS_THROUGH: dict[Any, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of a command that takes all options: Typer hands their words on."""

app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, help="Show and check the options of `turnkeeper serve`.")


@app.command(context_settings=PASS_THROUGH, add_help_option=False)
def show(ctx: typer.Context, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print each option's value and where it came from."""
    loaded = _load(ctx.args, "turnkeeper config show", "Print each option's value and where it came from.")
    from turnkeeper.cli.config_values import list_facts, render_values
    from turnkeeper.cli.output import build_console

    if as_json:
        typer.echo(json.dumps(list_facts(loaded), indent=2))
    else:
        build_console().print(render_values(loaded))


@app.command("check", context_settings=PASS_THROUGH, add_help_option=False)
def check_options(ctx: typer.Context, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Say everything that cannot work (exit status 2), and what is only risky."""
    loaded = _load(ctx.args, "turnkeeper config check", "Say everything that cannot work, and what is only risky.")
    from turnkeeper.config.rules import check
    from turnkeeper.errors import ArgumentErrors

    findings = check(loaded)
    warnings = (*loaded.warnings, *findings.warnings)
    if as_json:
        typer.echo(json.dumps({"errors": findings.errors, "warnings": warnings}, indent=2))
        raise typer.Exit(2 if findings.errors else 0)
    for warning in warnings:
        typer.echo(f"turnkeeper: warning: {warning}", err=True)
    if findings.errors:
        fail(ArgumentErrors("\n".join(findings.errors)))
    typer.echo("the options go together")


def _load(arguments: list[str], program: str, summary: str) -> "Loaded":
    from turnkeeper.cli.options import is_help_asked, print_help

    if is_help_asked(arguments):
        print_help(program, summary, extra=(("--json", "Print JSON."),))
    from turnkeeper.config.resolve import load_command_line

    return load_command_line(arguments, program=program)
