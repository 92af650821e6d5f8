"""The Grafana dashboard of a session server, rendered from a table of panels.

``python -m tools.dashboard docs/operations`` writes ``grafana.json``; a test compares the file with what is rendered,
and every expression with the catalog of metrics.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "grafana.json"

SCHEMA = 39
"""The version of Grafana's dashboard schema, that of Grafana 11; later versions read it."""

_WIDTH, _HEIGHT, _ROW_HEIGHT = 24, 8, 1
"""A dashboard is 24 units wide; a row's heading is one unit high."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

_CHOSEN = 'job=~"$job", instance=~"$instance"'
"""Selects the servers that the variables of the dashboard choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a panel."""

    expression: str
    legend: str = ""
    """The name of each series, with labels in double braces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel."""

    title: str
    tells: str
    """What to look for, in one or two sentences."""
    unit: str
    """A unit of Grafana's."""
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    is_stacked: bool = False
    maximum: float | None = None
    """The top of the axis; None leaves it to the values."""


def _select(name: str, labels: str = "") -> str:
    """The series of a metric, of the chosen servers and with these labels."""
    return f"{name}{{{', '.join(filter(None, (_CHOSEN, labels)))}}}"


def _sum(inner: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} ({inner})"


def _max(inner: str, by: str = "") -> str:
    return f"max{f' by ({by})' if by else ''} ({inner})"


def _rate(name: str, labels: str = "", by: str = "") -> str:
    """The rate of a counter, added up over servers, by labels."""
    return _sum(f"rate({_select(name, labels)}[$__rate_interval])", by)


def _share(part: str, whole: str) -> str:
    return f"({part}) / ({whole} > 0)"


def _mean(name: str, by: str) -> str:
    return _share(_rate(f"{name}_sum", by=by), _rate(f"{name}_count", by=by))


def _quantiles(name: str, by: str = "", legend: str = "") -> tuple[Query, ...]:
    """The median and the 95th percentile of a histogram."""
    inner = _rate(f"{name}_bucket", by=f"le, {by}" if by else "le")
    return tuple(
        Query(expression=f"histogram_quantile({quantile}, {inner})", legend=f"{legend} {word}".strip())
        for quantile, word in ((0.5, "median"), (0.95, "95%"))
    )


def _one(expression: str, legend: str = "") -> tuple[Query, ...]:
    return (Query(expression=expression, legend=legend),)


_FORKS = " + ".join(
    (
        _rate("turnkeeper_turn_labels_total", 'label="branch"'),
        _rate("turnkeeper_turn_labels_total", 'label="root", cause!="first"'),
    )
)

_OVERVIEW = (
    Panel(
        title="Turns a second",
        tells="Recorded turns of all servers that are chosen above.",
        unit="reqps",
        kind="stat",
        queries=_one(_rate("turnkeeper_turns_total")),
    ),
    Panel(
        title="Turns in flight",
        tells="Of these, those at an engine do the work.",
        unit="short",
        kind="stat",
        queries=_one(_sum(_select("turnkeeper_turns_in_flight"))),
    ),
    Panel(
        title="Open sessions",
        tells="Sessions that were not deleted and have not expired.",
        unit="short",
        kind="stat",
        queries=_one(_sum(_select("turnkeeper_sessions"))),
    ),
    Panel(
        title="Engines that serve",
        tells="As the first server that was asked sees them.",
        unit="short",
        kind="stat",
        queries=_one(_sum(_max(_select("turnkeeper_engine_status", 'state="serving"'), by="engine"))),
    ),
    Panel(
        title="Turns that fail",
        tells="Turns that failed or were given up, of all that ended.",
        unit="percentunit",
        kind="stat",
        queries=_one(
            _share(_rate("turnkeeper_turns_ended_total", 'end!="recorded"'), _rate("turnkeeper_turns_ended_total"))
        ),
    ),
    Panel(
        title="Paused",
        tells="1 while the engines are paused for a weight update.",
        unit="bool",
        kind="stat",
        queries=_one(_max(_select("turnkeeper_paused"))),
    ),
)

_TURNS = (
    Panel(
        title="Turns in flight by phase",
        tells="Turns at the gate wait for the trainer, at an engine for tokens, held ones for their agent.",
        unit="short",
        is_stacked=True,
        queries=_one(_sum(_select("turnkeeper_turns_in_phase"), by="phase"), "{{phase}}"),
    ),
    Panel(
        title="Longest time in a phase",
        tells="A line that climbs is a stuck turn; GET /sessions?order=in_flight names its session.",
        unit="s",
        queries=_one(_max(_select("turnkeeper_longest_in_phase_seconds"), by="phase"), "{{phase}}"),
    ),
    Panel(
        title="Time of a turn",
        tells="From an agent's request to the record of its turn.",
        unit="s",
        queries=_quantiles("turnkeeper_turn_seconds"),
    ),
    Panel(
        title="Time to the first token",
        tells="Of streamed requests: from an agent's request to the first tokens that an engine streams for it.",
        unit="s",
        queries=_quantiles("turnkeeper_first_token_seconds"),
    ),
    Panel(
        title="Where turns spend their time",
        tells="Seconds a turn, on average, in each phase.",
        unit="s",
        is_stacked=True,
        queries=_one(_mean("turnkeeper_turn_phase_seconds", by="phase"), "{{phase}}"),
    ),
    Panel(
        title="Turns that are no extension",
        tells="Forks by their cause. First turns of sessions are left out; every other one renders a history again.",
        unit="reqps",
        is_stacked=True,
        queries=_one(
            _rate("turnkeeper_turn_labels_total", 'label!="extension", cause!="first"', by="label, cause"),
            "{{label}}: {{cause}}",
        ),
    ),
    Panel(
        title="Share of forks",
        tells="Forks of all turns. A jump means that a harness, a prompt or a matcher has changed.",
        unit="percentunit",
        queries=_one(_share(_FORKS, _rate("turnkeeper_turn_labels_total")), "forks"),
    ),
    Panel(
        title="Ends of turns",
        tells="Recorded, failed and given up.",
        unit="reqps",
        is_stacked=True,
        queries=_one(_rate("turnkeeper_turns_ended_total", by="end"), "{{end}}"),
    ),
    Panel(
        title="Errors by code",
        tells="Every request that was answered with an error, by the code in its body.",
        unit="reqps",
        is_stacked=True,
        queries=_one(f"{_rate('turnkeeper_errors_total', by='code')} > 0", "{{code}}"),
    ),
)

_TOKENS = (
    Panel(
        title="Sampled tokens a second",
        tells="What engines report, dropped tokens included.",
        unit="short",
        queries=_one(_rate("turnkeeper_tokens_sampled_total"), "sampled"),
    ),
    Panel(
        title="Hit rate of prefix caches",
        tells="Cached of all prompt tokens. Forks and moved sessions lower it.",
        unit="percentunit",
        maximum=1.0,
        queries=_one(
            _share(_rate("turnkeeper_cached_tokens_total"), _rate("turnkeeper_prompt_tokens_total")), "cached"
        ),
    ),
    Panel(
        title="What became of collected tokens",
        tells="Trainable, masked and dropped, when first collected.",
        unit="short",
        is_stacked=True,
        queries=_one(_rate("turnkeeper_tokens_collected_total", by="fate"), "{{fate}}"),
    ),
    Panel(
        title="Tokens that no turn holds",
        tells="Sampled for nothing, by reason.",
        unit="short",
        is_stacked=True,
        queries=_one(f"{_rate('turnkeeper_tokens_dropped_total', by='reason')} > 0", "{{reason}}"),
    ),
)

_ENGINES = (
    Panel(
        title="State of engines",
        tells="1 in the state that an engine was last seen in.",
        unit="bool",
        queries=_one(f"max by (engine, state) ({_select('turnkeeper_engine_status')}) > 0", "{{engine}} {{state}}"),
    ),
    Panel(
        title="Calls at each engine",
        tells="An uneven load means that sessions were opened unevenly, or that an engine was away.",
        unit="short",
        is_stacked=True,
        queries=_one(_sum(_select("turnkeeper_engine_calls_running"), by="engine"), "{{engine}}"),
    ),
    Panel(
        title="Time of an engine call",
        tells="By engine; one that stands out is overloaded or ill.",
        unit="s",
        queries=_quantiles("turnkeeper_engine_call_seconds", by="engine", legend="{{engine}}"),
    ),
    Panel(
        title="Calls without a reply",
        tells="By engine and outcome; given_up are calls whose agent or session went away.",
        unit="reqps",
        is_stacked=True,
        queries=_one(
            _rate("turnkeeper_engine_calls_total", 'outcome!="answered"', by="engine, outcome") + " > 0",
            "{{engine}} {{outcome}}",
        ),
    ),
    Panel(
        title="Weight versions",
        tells="Lines that part for longer than an update are engines that missed it. Only numbers show.",
        unit="none",
        queries=_one(_max(_select("turnkeeper_engine_weight_version"), by="engine"), "{{engine}}"),
    ),
    Panel(
        title="Pauses",
        tells="Seconds of a pause, on average, by mode.",
        unit="s",
        queries=_one(_mean("turnkeeper_pause_seconds", by="mode"), "{{mode}}"),
    ),
)

_COLLECTS = (
    Panel(
        title="Collects a second",
        tells="Beside the sessions that end, repeated collects show.",
        unit="reqps",
        queries=(
            Query(expression=_rate("turnkeeper_collects_total"), legend="collects"),
            Query(expression=_rate("turnkeeper_sessions_ended_total"), legend="sessions that ended"),
        ),
    ),
    Panel(
        title="Time of a collect",
        tells="From the request of the trainer to the encoded payload.",
        unit="s",
        queries=_quantiles("turnkeeper_collect_seconds"),
    ),
    Panel(
        title="Size of a payload",
        tells="Grows with tokens, and with routing rows above all.",
        unit="bytes",
        queries=_quantiles("turnkeeper_collect_bytes"),
    ),
    Panel(
        title="Leaves without a sample",
        tells="Paths that ended no sample when collected, by cause.",
        unit="reqps",
        is_stacked=True,
        queries=_one(f"{_rate('turnkeeper_leaves_dropped_total', by='cause')} > 0", "{{cause}}"),
    ),
)

_STORE = (
    Panel(
        title="Writes of the store",
        tells="Stored, and failed ones, whose turns are answered with an error.",
        unit="wps",
        queries=(
            Query(expression=_rate("turnkeeper_store_writes_total"), legend="stored"),
            Query(expression=_rate("turnkeeper_store_failed_writes_total"), legend="failed"),
        ),
    ),
    Panel(
        title="Waiting writes",
        tells="Above a few hundred the disk is too slow for the turns.",
        unit="short",
        queries=_one(_sum(_select("turnkeeper_store_waiting_writes"), by="instance"), "{{instance}}"),
    ),
    Panel(
        title="Time of a transaction",
        tells="On average, routing rows and syncs included; turns wait for it.",
        unit="s",
        queries=_one(
            _share(_rate("turnkeeper_store_transaction_seconds_total"), _rate("turnkeeper_store_transactions_total")),
            "transaction",
        ),
    ),
    Panel(
        title="Writes in a transaction",
        tells="Grows with the load: what waits is stored together.",
        unit="short",
        queries=_one(
            _share(_rate("turnkeeper_store_writes_total"), _rate("turnkeeper_store_transactions_total")), "writes"
        ),
    ),
    Panel(
        title="Size on disk",
        tells="Of each process; --store-max-bytes bounds all of them together.",
        unit="bytes",
        is_stacked=True,
        queries=_one(_sum(_select("turnkeeper_store_bytes"), by="instance"), "{{instance}}"),
    ),
    Panel(
        title="Sessions removed to keep the limits",
        tells="Uncollected ones are lost to every trainer.",
        unit="short",
        queries=_one(_rate("turnkeeper_store_removed_sessions_total", by="fate"), "{{fate}}"),
    ),
)

_SERVER = (
    Panel(
        title="Lag of the event loop",
        tells="While it lags, every stream stops. Above 0.1 s use more workers.",
        unit="s",
        queries=_quantiles("turnkeeper_event_loop_lag_seconds"),
    ),
    Panel(
        title="Wait for a thread that renders",
        tells="Of large prompts alone.",
        unit="s",
        queries=_quantiles("turnkeeper_render_queue_seconds"),
    ),
    Panel(
        title="CPU of each process",
        tells="A process has one event loop: at 1 it has no time left.",
        unit="percentunit",
        queries=_one(f"rate({_select('process_cpu_seconds_total')}[$__rate_interval])", "{{instance}}"),
    ),
    Panel(
        title="Memory of sessions",
        tells="At the limit new sessions and turns are refused.",
        unit="bytes",
        queries=(
            Query(expression=_select("turnkeeper_session_bytes"), legend="{{instance}} sessions"),
            Query(expression=_select("turnkeeper_limit", 'limit="max_memory_bytes"'), legend="{{instance}} limit"),
            Query(expression=_select("process_resident_memory_bytes"), legend="{{instance}} process"),
        ),
    ),
    Panel(
        title="Refused at a limit",
        tells="By the option that sets the limit.",
        unit="reqps",
        is_stacked=True,
        queries=_one(_rate("turnkeeper_limits_reached_total", by="limit"), "{{limit}}"),
    ),
    Panel(
        title="Failures of background tasks",
        tells="Failed tasks are started again; the log has the traceback.",
        unit="short",
        queries=_one(
            f"sum by (task) (increase({_select('turnkeeper_task_failures_total')}[$__rate_interval])) > 0", "{{task}}"
        ),
    ),
    Panel(
        title="What runs",
        tells="Versions and options by server.",
        unit="none",
        kind="table",
        queries=(
            Query(expression=_select("turnkeeper_build_info")),
            Query(expression=_select("turnkeeper_config_info")),
        ),
    ),
)

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("Overview", _OVERVIEW),
    ("Turns", _TURNS),
    ("Tokens", _TOKENS),
    ("Engines and weight updates", _ENGINES),
    ("Collects", _COLLECTS),
    ("The store", _STORE),
    ("Servers", _SERVER),
)
"""The panels by what they are about, from the top to the bottom."""


def render_dashboard() -> str:
    """Render the dashboard as JSON, for Grafana's import."""
    return json.dumps(_build_dashboard(), indent=2) + "\n"


def _build_dashboard() -> dict[str, Any]:
    return {
        "title": "turnkeeper",
        "uid": "turnkeeper",
        "tags": ["turnkeeper"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [_build_source(), _build_variable("job", ""), _build_variable("instance", '{job=~"$job"}')]
        },
        "panels": list(_build_panels()),
    }


def _build_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _build_variable(name: str, selected: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values(turnkeeper_build_info{selected}, {name})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _build_panels() -> Iterator[dict[str, Any]]:
    y = number = 0
    for title, panels in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": _ROW_HEIGHT},
            "panels": [],
        }
        y += _ROW_HEIGHT
        across = len(panels) if panels[0].kind == "stat" else 2
        width, height = _WIDTH // across, _HEIGHT // 2 if panels[0].kind == "stat" else _HEIGHT
        for place, panel in enumerate(panels):
            number += 1
            grid = {"x": place % across * width, "y": y + place // across * height, "w": width, "h": height}
            yield _build_panel(panel, number, grid)
        y += -(-len(panels) // across) * height


def _build_panel(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.is_stacked else {}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.tells,
        "datasource": _SOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": list(_build_targets(panel)),
    }


def _build_targets(panel: Panel) -> Iterator[dict[str, Any]]:
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        is_table = panel.kind == "table"
        yield {
            "refId": letter,
            "datasource": _SOURCE,
            "expr": query.expression,
            "legendFormat": query.legend,
            "instant": is_table,
            "range": not is_table,
            "format": "table" if is_table else "time_series",
        }


def main(arguments: Sequence[str]) -> None:
    """Write the file into the folder that the command line names."""
    Path(arguments[0], FILE).write_text(render_dashboard(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
