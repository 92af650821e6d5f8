"""The catalog of metrics.

1. Names are unique and carry their unit; every metric is there to be read, with its help.
2. Labels have closed sets of values: those of the enumerations, of the error tree, of the tasks and of the limits that
   the code has. Where a list stands in the catalog because its owner is a package further down, it is that one's.
3. Every series is there before the first event: nothing that a server does adds one, whatever its clients send.
"""

import re
from pathlib import Path

from httpkit import Site, running_site
from servicekit import assistant, user
from tablekit import checking_table
from turnkeeper.engines import EngineState
from turnkeeper.errors import TurnkeeperError
from turnkeeper.fleet.check_result import RouteState
from turnkeeper.metrics import METRICS, MetricKind, Metrics
from turnkeeper.metrics.row import Unit
from turnkeeper.metrics.values import ERROR_CODES, TASKS
from turnkeeper.testing import ScriptedEngine, ScriptedReply

SOURCE = Path(__file__).parents[2] / "src" / "turnkeeper"
BY_NAME = {row.name: row for row in METRICS}


def list_values(name: str, label: str) -> set[str]:
    (found,) = (each for each in BY_NAME[name].labels if each.name == label)
    return set(found.values)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(METRICS)


def test_a_metric_is_there_and_explained() -> None:
    with checking_table() as table:
        for row in METRICS:
            with table.case(row.name):
                text = Metrics(["http://a:1"]).render().decode()
                suffix = "_total" if row.kind is MetricKind.COUNTER else ""
                assert f"# HELP {row.name}{suffix} {row.help}" in text
                assert row.help.endswith(".")
                assert not row.tells or row.tells.endswith(".")


UNITS = {Unit.SECONDS: "_seconds", Unit.BYTES: "_bytes", Unit.TOKENS: "_tokens|tokens_", Unit.ROWS: "_rows"}


def test_a_name_carries_its_unit() -> None:
    with checking_table() as table:
        for row in METRICS:
            with table.case(row.name):
                for unit, form in UNITS.items():
                    assert bool(re.search(form, row.name)) == (row.unit is unit), unit
                assert bool(row.buckets) == (row.kind is MetricKind.HISTOGRAM)
                assert list(row.buckets) == sorted(row.buckets)


def test_a_label_has_its_values_or_says_where_they_come_from() -> None:
    assert [row.name for row in METRICS for label in row.labels if bool(label.values) == bool(label.source)] == []


def test_the_states_of_engines_and_routes_are_those_of_the_fleet() -> None:
    for name in ("turnkeeper_engine_state", "turnkeeper_engine_status"):
        assert list_values(name, "state") == set(EngineState)
    assert list_values("turnkeeper_engine_routes", "verdict") == set(RouteState)


def list_classes(root: type[TurnkeeperError]) -> set[type[TurnkeeperError]]:
    return {root}.union(*map(list_classes, root.__subclasses__()))


def test_the_codes_are_those_of_the_error_tree() -> None:
    ours = {each for each in list_classes(TurnkeeperError) if each.__module__.startswith("turnkeeper.")}
    assert {each.code for each in ours} == set(ERROR_CODES)


def find_in_source(pattern: str) -> set[str]:
    return {found for path in SOURCE.rglob("*.py") for found in re.findall(pattern, path.read_text())}


def test_the_limits_are_those_that_refuse_requests() -> None:
    assert find_in_source(r'\blimit="(\w+)"') == list_values("turnkeeper_limits_reached", "limit")


async def test_the_tasks_are_those_that_a_server_runs() -> None:
    spawned = find_in_source(r'spawn\(\s*"(\w+)"')
    async with running_site() as site:
        loops = set(site.backend.health.describe(is_admin=True)["tasks"])
    assert spawned | loops | {"engine_routes"} == set(TASKS)  # the last runs where routes are checked


def list_series(site: Site) -> set[str]:
    lines = site.backend.metrics.render().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def live_through_everything(site: Site) -> None:
    """Take turns, fork, be refused, fail, pause, collect, and lose a session."""
    session = await site.create(history="tree", metadata={"user": "mallory"})
    asked = [user("a")]
    await site.chat(session, asked, model="mallorys-own-model", invented_field=1, **{'evil"}\n': 2})
    await site.chat(session, [*asked, assistant("x"), user("b")])  # a rewritten reply: another root
    assert (await site.chat(session, [])).status == 400
    site.engine.script.append(ScriptedReply(status=500, body=b"broken"))
    assert (await site.chat(session, [user("c")])).status == 502
    await site.call("POST", "/engine/pause", {"mode": "in_place"})
    await site.call("POST", "/engine/continue")
    assert (await site.call("POST", f"{session}/v1/messages", {"max_tokens": 5, "messages": asked})).status == 200
    assert (await site.call("POST", f"{session}/v1/responses", {"input": "a"})).status == 200
    await site.call("POST", f"{session}/samples")
    await site.call("GET", "/nowhere")
    await site.call("PATCH", "/sessions")
    await site.call("DELETE", session)


async def test_nothing_that_happens_adds_a_series() -> None:
    async with running_site(ScriptedEngine()) as site:
        await site.call("GET", "/health")
        before = list_series(site)
        await live_through_everything(site)
        text = site.backend.metrics.render().decode()
        assert list_series(site) - before == set()
        assert before - list_series(site) == set()
    for word in ("mallory", "invented_field"):
        assert word not in re.sub(r"# HELP.*", "", text)
    counted = {
        'turnkeeper_turn_labels_total{cause="first",label="root"}': 1,
        'turnkeeper_fields_dropped_total{field="other"}': 2,
        'turnkeeper_errors_total{code="engine"}': 1,
        'turnkeeper_errors_total{code="route_not_served"}': 1,
        'turnkeeper_errors_total{code="method_not_allowed"}': 1,
        'turnkeeper_turns_ended_total{end="failed"}': 1,
        'turnkeeper_pause_seconds_count{mode="in_place"}': 1,
        "turnkeeper_collect_bytes_count": 1,
    }
    assert 'routing_replay="false",store="memory",workers="1"}' in text
    for series, value in counted.items():
        assert f"{series} {float(value)}" in text, series
