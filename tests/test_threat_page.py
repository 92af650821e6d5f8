"""The page on the threat model says of every route what the table of access decides.

1. Every method of every route of the application stands in one row, and no row is left over.
2. Each cell is what ``turnkeeper.access`` decides for that caller.
"""

from pathlib import Path

import pytest
from starlette.routing import Route

from servicekit import build_kit
from turnkeeper.access import GRANTABLE, Caller, Grant, Right, authorize, find_right
from turnkeeper.errors import AuthenticationError, PermissionDeniedError
from turnkeeper.http.app import build_app
from turnkeeper.ids import SessionId

PAGE = (Path(__file__).parent.parent / "docs" / "concepts" / "threat-model.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| `") and line.count("|") == 7
]
MINE, OTHER = SessionId("a" * 32), SessionId("b" * 32)


def hold(session_id: SessionId, *scopes: Right) -> Caller:
    return Caller(grants=(Grant(session_id=session_id, scopes=frozenset({Right.TURN, *scopes})),))


def decide(right: Right, caller: Caller, session_id: SessionId | None) -> str:
    try:
        authorize(right, caller, session_id)
    except (AuthenticationError, PermissionDeniedError) as error:
        return str(error.http_status)
    return "yes"


def describe(method: str, path: str) -> list[str]:
    """The cells of a route, from the decisions alone."""
    right = find_right(method, path)
    named = MINE if "{session_id}" in path else None
    needed = [scope for scope in GRANTABLE if decide(right, hold(MINE, scope), named) == "yes"]
    plain = decide(right, hold(MINE), named)
    own = f"with scope `{needed[0]}`" if plain == "403" and needed else plain
    other = decide(right, hold(OTHER, *GRANTABLE), named)
    is_turn = path.startswith("/v1/") and method == "POST"
    return [
        decide(right, Caller(), named),
        own,
        "its own session" if named is None and right is Right.TURN and other == "yes" else other,
        "with a session named beside it" if is_turn else decide(right, Caller(is_admin=True), named),
    ]


def test_the_page_has_every_route_once() -> None:
    routes = [route for route in build_app(build_kit().backend).routes if isinstance(route, Route)]
    served = sorted((method, route.path) for route in routes for method in route.methods or ())
    shown = sorted((method, row[1].strip("`")) for row in ROWS for method in row[0].strip("`").split())
    assert shown == served


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:2]))
def test_the_page_says_what_is_decided(row: list[str]) -> None:
    for method in row[0].strip("`").split():
        assert describe(method, row[1].strip("`")) == row[2:], method
