"""What ``turnkeeper config show`` prints: each option's value and origin, and what follows from them."""

import json

from rich.table import Table
from rich.text import Text

from turnkeeper.config.credentials import HIDDEN, hide_userinfo
from turnkeeper.config.load import Loaded, Source
from turnkeeper.config.option import OPTIONS, Option, get_section_title
from turnkeeper.config.resolve import resolve
from turnkeeper.jsontypes import JsonObject


def list_facts(loaded: Loaded) -> JsonObject:
    """List every option and what follows from them, JSON-ready: an object with ``value`` and ``from`` for each."""
    return {"options": {option.key: describe(loaded, option) for option in OPTIONS}, "derived": derive(loaded)}


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
