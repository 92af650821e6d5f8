"""The page on operating a server names every event of the log, with its keys; and it names no other."""

import ast
import re
from pathlib import Path
from typing import Any, cast

from logs.test_reports import CASES
from turnkeeper.logs.reports import LINES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "operating.md"

FAULT = {"error", "code", "facts", "hint", "because"}
"""The keys by which an exception is told, where a line is about one."""

ELSEWHERE = {"message": {"logger", "message", "frames", *FAULT}, "log_lines_dropped": {"lines"}}
"""The lines that no event makes: sentences, and the writer's own."""


def read_page() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `(\w+)` \| [\w, ]+ \| .+ \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {event: set(re.findall(r"`(\w+)`", keys)) for event, keys in rows}


def list_reported() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for report, _, _ in CASES:
        row = LINES[type(report)]
        keys = set(cast(Any, row.describe)(report))
        has_error = hasattr(report, "error") and row.name != "engine_changed"
        found[row.name] = found.get(row.name, set()) | keys | (FAULT if has_error else set())
    return found


def list_logged() -> dict[str, set[str]]:
    """The events that the source makes by name, with their keywords."""
    calls = (
        node
        for path in (ROOT / "src" / "turnkeeper").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "LogEvent"
    )
    named = [call for call in calls if isinstance(call.args[0], ast.Constant)]
    return {
        str(cast(ast.Constant, call.args[0]).value): {keyword.arg for keyword in call.keywords if keyword.arg}
        for call in named
    }


def test_the_page_has_every_event_with_its_keys() -> None:
    logged = list_logged()
    logged["worker_ended"] |= {"status", "signal"}
    logged["prompt_rendered"] |= {"rows_from"}  # told by the channel of routing rows
    assert read_page() == list_reported() | logged | ELSEWHERE


def test_names_of_events_and_keys_are_plain() -> None:
    names = {name for event, keys in read_page().items() for name in (event, *keys)}
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
