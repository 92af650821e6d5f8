"""The pages of the HTTP API and of the metrics say what the code says.

1. Every route, error and metric stands on its page as it is declared; no row is left over.
"""

from pathlib import Path

from servicekit import build_kit
from turnkeeper import errors
from turnkeeper.http.app import build_route_rows
from turnkeeper.metrics import METRICS, MetricKind

DOCS = Path(__file__).parent.parent / "docs" / "reference"


def read_rows(page: str, columns: int) -> list[list[str]]:
    """The rows of all tables of a page with so many columns, their heads left out."""
    lines = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("| `")]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns]


def walk(error: type[errors.TurnkeeperError]) -> list[type[errors.TurnkeeperError]]:
    children = [child for child in error.__subclasses__() if child.__module__ == errors.__name__]
    return [error, *(each for child in children for each in walk(child))]


async def test_the_page_lists_every_route() -> None:
    routes = [[" ".join(row.methods), row.path, row.summary] for row in build_route_rows(build_kit().backend)]
    assert read_rows("http.md", 3) == routes


def test_the_page_lists_every_error() -> None:
    served = [each for each in walk(errors.TurnkeeperError) if not issubclass(each, errors.ConfigError)]
    expected = [[each.code, str(each.status), "yes" if each.is_retryable else "no"] for each in served]
    assert [row[:3] for row in read_rows("http.md", 4)] == expected


def test_the_page_lists_every_metric() -> None:
    counted = {MetricKind.COUNTER: "_total"}
    expected = [
        [row.name + counted.get(row.kind, ""), str(row.kind), f"{row.help} {row.tells}".strip()] for row in METRICS
    ]
    assert [[name, kind, text] for name, kind, _, _, text in read_rows("metrics.md", 5)] == expected
