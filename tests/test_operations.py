"""The dashboard and the alert rules, checked against the catalog of metrics.

1. The dashboard file is what its table of panels renders; every panel has a title, a unit and a sentence.
2. Every expression is PromQL. It names series of the catalog as the exposition writes them (counters with `_total`,
   histograms with `_bucket`, `_sum` and `_count`), selects and groups by labels that they have, and compares labels
   with values that they can have.
3. A quantile is taken of buckets grouped by `le`; counters are looked at through `rate` or `increase`.
4. Every alert says for how long, how severe and what to do, in text that names only labels of its expression.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tablekit import checking_table
from tools.dashboard import FILE, ROWS, main, render_dashboard
from turnkeeper.metrics import METRICS, MetricKind
from turnkeeper.metrics.catalog import PROCESS_SERIES

FOLDER = Path(__file__).parent.parent / "docs" / "operations"
SCRAPED = {"job", "instance"}
"""The labels that Prometheus adds to whatever it scrapes."""

OWNERS = {series: row for row in METRICS for series in row.series}
COUNTERS = {series for series, row in OWNERS.items() if row.kind is not MetricKind.GAUGE} | {
    series for series in PROCESS_SERIES if series.endswith("_total")
}

PANELS = {panel.title: panel for _, panels in ROWS for panel in panels}
ALERTS: dict[str, Any] = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
}
EXPRESSIONS = {
    **{
        f"{title} {number}": query.expression
        for title, panel in PANELS.items()
        for number, query in enumerate(panel.queries)
    },
    **{name: rule["expr"] for name, rule in ALERTS.items()},
}


def parse(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def find_nodes(expression: str, kind: type) -> list[Any]:
    found: list[Any] = []
    promql_parser.walk(parse(expression), lambda node: found.append(node) if isinstance(node, kind) else None)
    return found


def list_labels(series: str) -> set[str]:
    """The labels that a series has when it is scraped."""
    if series in PROCESS_SERIES:
        return SCRAPED
    row = OWNERS[series]
    return SCRAPED | {label.name for label in row.labels} | ({"le"} if series.endswith("_bucket") else set())


def list_grouped(expression: str) -> Iterator[tuple[set[str], set[str]]]:
    """The labels of each grouping, with those of the series inside it."""
    for node in find_nodes(expression, promql_parser.AggregateExpr):
        inside = {each.name for each in find_nodes(node.prettify(), promql_parser.VectorSelector)}
        grouped = set(node.modifier.labels) if node.modifier is not None else set[str]()
        yield grouped, set.intersection(*map(list_labels, inside))


def test_the_file_is_what_the_table_renders(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert (FOLDER / FILE).read_text() == (tmp_path / FILE).read_text() == render_dashboard(), "run: make docs"


def test_grafana_finds_what_it_needs() -> None:
    board = json.loads(render_dashboard())
    ids = [panel["id"] for panel in board["panels"]]
    assert len({*ids}) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len({*places}) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])
    drawn = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in drawn] == list(PANELS)
    assert all(panel["fieldConfig"]["defaults"]["unit"] and panel["targets"] for panel in drawn)
    variables = {each["name"] for each in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", render_dashboard())) - {"__rate_interval", "__all"}
    assert used == variables


def test_a_panel_has_a_title_a_unit_and_a_sentence() -> None:
    with checking_table() as table:
        for label, panel in PANELS.items():
            with table.case(label):
                assert panel.title
                assert panel.unit
                assert panel.tells.endswith(".")
                assert len(panel.queries) == 1 or all(query.legend for query in panel.queries) or panel.kind == "table"


def test_an_expression_names_what_the_catalog_has() -> None:
    with checking_table() as table:
        for label, expression in EXPRESSIONS.items():
            with table.case(label):
                selectors = find_nodes(expression, promql_parser.VectorSelector)
                assert selectors
                for selector in selectors:
                    assert selector.name in {*OWNERS, *PROCESS_SERIES}
                    known = list_labels(selector.name)
                    for matcher in selector.matchers.matchers:
                        assert matcher.name in known, matcher
                        if matcher.name not in SCRAPED:
                            (label,) = (each for each in OWNERS[selector.name].labels if each.name == matcher.name)
                            assert {*matcher.value.split("|")} <= {*label.values}, matcher


def test_an_expression_groups_by_labels_that_its_series_have() -> None:
    with checking_table() as table:
        for label, expression in EXPRESSIONS.items():
            with table.case(label):
                for grouped, known in list_grouped(expression):
                    assert grouped <= known


def test_a_legend_and_a_quantile_have_their_labels() -> None:
    with checking_table() as table:
        for label, expression in EXPRESSIONS.items():
            with table.case(label):
                for call in find_nodes(expression, promql_parser.Call):
                    if call.func.name == "histogram_quantile":
                        ((grouped, _),) = list_grouped(call.prettify())
                        assert "le" in grouped
                        selectors = find_nodes(call.prettify(), promql_parser.VectorSelector)
                        assert all(each.name.endswith("_bucket") for each in selectors)


def test_a_counter_is_looked_at_through_its_rate() -> None:
    with checking_table() as table:
        for label, expression in EXPRESSIONS.items():
            with table.case(label):
                ranged = {node.vector_selector.name for node in find_nodes(expression, promql_parser.MatrixSelector)}
                looked = {node.name for node in find_nodes(expression, promql_parser.VectorSelector)} - ranged
                assert looked & COUNTERS == set()
                assert ranged <= COUNTERS


def test_a_legend_names_labels_that_are_grouped_by() -> None:
    with checking_table() as table:
        for title in PANELS:
            with table.case(title):
                for query in PANELS[title].queries:
                    named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
                    groupings = [grouped for grouped, _ in list_grouped(query.expression)]
                    assert named <= (set.union(*groupings) if groupings else SCRAPED)


@pytest.mark.parametrize(("name", "rule"), ALERTS.items(), ids=ALERTS)
def test_an_alert_says_what_to_do(name: str, rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Turnkeeper[A-Z]\w+", name)
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    groupings = [grouped for grouped, _ in list_grouped(rule["expr"])]
    assert named <= (set.union(SCRAPED, *groupings) if groupings else SCRAPED)
