"""``turnkeeper config``: what ``turnkeeper serve`` would run with, and whether it goes together."""

import json

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnkeeper.cli.options import PASS_THROUGH, end_with_error, print_help
from turnkeeper.config.load import Loaded, Source
from turnkeeper.config.option import OPTIONS, Option, get_section_title
from turnkeeper.config.resolve import load_command_line
from turnkeeper.config.rules import check
from turnkeeper.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Show and check the options of `turnkeeper serve`.")

_SECRETS = frozenset({"api_key"})


@app.command(context_settings=PASS_THROUGH, add_help_option=False)
def show(ctx: typer.Context, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print each option's value and where it came from."""
    loaded = _load(ctx.args, "turnkeeper config show", "Print each option's value and where it came from.")
    if as_json:
        typer.echo(json.dumps({option.key: describe(loaded, option) for option in OPTIONS}, indent=2))
    else:
        Console().print(render_values(loaded))


@app.command("check", context_settings=PASS_THROUGH, add_help_option=False)
def check_options(ctx: typer.Context) -> None:
    """Say everything that cannot work (exit status 2), and what is only risky."""
    loaded = _load(ctx.args, "turnkeeper config check", "Say everything that cannot work, and what is only risky.")
    findings = check(loaded)
    for warning in (*loaded.warnings, *findings.warnings):
        typer.echo(f"warning: {warning}", err=True)
    if findings.errors:
        end_with_error("\n".join(findings.errors))
    typer.echo("the options go together")


def render_values(loaded: Loaded) -> Table:
    """Render every option with its value and origin, one row each, section by section."""
    table = Table("option", "value", "from", box=None, pad_edge=False, header_style="bold")
    section = ""
    for option in OPTIONS:
        if option.section != section:
            section = option.section
            table.add_row(Text(f"\n{get_section_title(section)}", style="bold"))
        fact = describe(loaded, option)
        style = "dim" if loaded.origins[option.attribute].source is Source.DEFAULT else ""
        value = fact["value"]
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        table.add_row(Text(option.key, style=style), Text(text, style=style), Text(str(fact["from"]), style=style))
    return table


def describe(loaded: Loaded, option: Option) -> dict[str, object]:
    """Give an option's value, JSON-ready, secrets left out, and its origin."""
    value = getattr(getattr(loaded.settings, option.section), option.field)
    if option.attribute in _SECRETS:
        value = ["***"] * len(value)
    return {"value": value, "from": str(loaded.origins[option.attribute])}


def _load(arguments: list[str], program: str, summary: str) -> Loaded:
    if "--help" in arguments:
        print_help(program, summary)
    try:
        return load_command_line(arguments, program=program)
    except ConfigError as error:
        end_with_error(str(error))
