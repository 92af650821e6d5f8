"""docs/concepts/matching.md shows, from recorded clients, what each matcher attaches and what it forks.

1. Both tables of the page are what playing the traces gives; a failure shows the table that belongs there.
2. The page names every matcher.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from sessionkit import completion_of, prompt_of
from turnkeeper.core import Cause, Session, Tree, Turn
from turnkeeper.dialects import DIALECTS, ParseContext
from turnkeeper.matching import MATCHERS, Matcher

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "concepts" / "matching.md"
CLIENTS = sorted(path for path in (TESTS / "data" / "traces").glob("*.json"))


def list_calls(path: Path) -> list[dict[str, Any]]:
    """The model calls of a client, in whatever dialects it spoke."""
    return [call for call in json.loads(path.read_text())["turns"] if call["protocol"] is not None]


def play(calls: list[dict[str, Any]], matcher: Matcher) -> tuple[Turn, ...]:
    dialects = {dialect.name: dialect for dialect in DIALECTS}
    session = Session.open(Tree(), matcher=matcher)
    for call in calls:
        context = ParseContext(decode_token=str)
        request = dialects[call["protocol"]].parse_request(call["body"], context).request
        pending = session.begin(request, at=0.0)
        session.commit(pending, prompt=prompt_of(), completion=completion_of(call["reply"]), at=0.0)
    return session.forest.turns


def render_attach() -> str:
    lines = [f"| client | {' | '.join(f'`{name}`' for name in MATCHERS)} |", "|---" * (len(MATCHERS) + 1) + "|"]
    for path in CLIENTS:
        if calls := list_calls(path):
            played = [play(calls, matcher) for matcher in MATCHERS.values()]
            cells = [" ".join("·" if turn.parent is None else str(turn.parent) for turn in turns) for turns in played]
            lines.append(f"| {path.stem} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render_forks() -> str:
    lines = ["| client | under | calls | cause | differs in | would have matched |", "|---|---|---|---|---|---|"]
    for path in CLIENTS:
        for name, matcher in MATCHERS.items():
            found: dict[str, list[str]] = {}
            for turn in play(list_calls(path), matcher):
                if turn.parent is None and turn.why.cause is not Cause.FIRST:
                    field = f"`{turn.why.difference.field}`" if turn.why.difference else ""
                    setting = f"`{turn.why.would_match.split()[-1]}`" if turn.why.would_match else ""
                    found.setdefault(f"{turn.why.cause} | {field} | {setting}", []).append(str(turn.id))
            lines += [f"| {path.stem} | `{name}` | {' '.join(ids)} | {why} |" for why, ids in found.items()]
    return "\n".join(lines)


@pytest.mark.parametrize(("table", "render"), [("attach", render_attach), ("forks", render_forks)])
def test_the_tables_of_the_page_are_what_the_traces_give(table: str, render: Any) -> None:
    page = PAGE.read_text()
    start = f"<!-- table: {table} -->\n"
    shown = page[page.index(start) + len(start) :].partition("\n<!-- end -->")[0]
    assert shown == render()


def test_the_page_names_every_matcher() -> None:
    page = PAGE.read_text()
    assert [name for name in MATCHERS if f"| `{name}`" not in page] == []
