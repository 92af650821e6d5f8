"""``turnkeeper config``: what ``turnkeeper serve`` would run with, and whether it goes together."""

import json

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from turnkeeper.cli.options import PASS_THROUGH, end_with_error, print_help
from turnkeeper.config.credentials import HIDDEN, hide_userinfo
from turnkeeper.config.load import Loaded, Source
from turnkeeper.config.option import OPTIONS, Option, get_section_title
from turnkeeper.config.resolve import load_command_line, resolve
from turnkeeper.config.rules import check
from turnkeeper.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Show and check the options of `turnkeeper serve`.")


@app.command(context_settings=PASS_THROUGH, add_help_option=False)
def show(ctx: typer.Context, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Print each option's value and where it came from."""
    loaded = _load(ctx.args, "turnkeeper config show", "Print each option's value and where it came from.")
    if as_json:
        options = {option.key: describe(loaded, option) for option in OPTIONS}
        typer.echo(json.dumps({"options": options, "derived": derive(loaded)}, indent=2))
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
        is_default = loaded.origins[option.attribute].source is Source.DEFAULT
        _add_row(table, option.key, describe(loaded, option), style="dim" if is_default else "")
    table.add_row(Text("\nDerived", style="bold"))
    for name, fact in derive(loaded).items():
        _add_row(table, name, fact)
    return table


def _add_row(table: Table, name: str, fact: dict[str, object], style: str = "") -> None:
    value = fact["value"]
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    table.add_row(Text(name, style=style), Text(text, style=style), Text(str(fact["from"]), style=style))


def derive(loaded: Loaded) -> dict[str, dict[str, object]]:
    """Give what follows from the options, JSON-ready, each with the option that it follows from."""
    config = resolve(loaded)
    kind = config.history_kind
    return {
        "history": {"value": kind, "from": "use-session-server"},
        "tools-change": {"value": config.get_on_tools_change(kind), "from": "on-tools-change, history"},
        "truncated": {"value": config.get_on_truncated(kind), "from": "on-truncated, history"},
        "rows-asked-for": {
            "value": "added" if config.use_addition_r3 else "all",
            "from": "pause-generation-mode",
        },
        "wire": {
            "value": config.engine_wire or "chat, or generate under prefill/decode disaggregation",
            "from": "engine-wire",
        },
        "turn-timeout": {"value": config.request_timeout_s, "from": "request-timeout, engine-timeout, gate-timeout"},
        "ports": {"value": config.ports, "from": "session-server-port, session-server-workers"},
    }


def describe(loaded: Loaded, option: Option) -> dict[str, object]:
    """Give an option's value, JSON-ready, secrets left out, and its origin."""
    value = getattr(getattr(loaded.settings, option.section), option.field)
    if option.is_secret:
        value = HIDDEN if isinstance(value, str) else value and [HIDDEN] * len(value)
    elif option.attribute == "backend_url":
        value = [hide_userinfo(url) for url in value]
    return {"value": value, "from": str(loaded.origins[option.attribute])}


def _load(arguments: list[str], program: str, summary: str) -> Loaded:
    if "--help" in arguments:
        print_help(program, summary)
    try:
        return load_command_line(arguments, program=program)
    except ConfigError as error:
        end_with_error(str(error))
