"""The reference page of metrics, rendered from their catalog."""

from collections.abc import Iterator

from turnkeeper.metrics import METRICS, MetricKind, MetricRow
from turnkeeper.metrics.catalog import PROCESS_SERIES, SECTIONS
from turnkeeper.metrics.row import MetricLabel

_HEAD = """\
# Metrics

`GET /metrics` answers in the Prometheus text format; with keys on the server (`--api-key`) it takes the admin's. What
to watch, the dashboard and the alerts are in [operating a server](../guides/operating.md#metrics).

The names are those of the exposition: counters end in `_total`, a histogram `NAME` has the series `NAME_bucket`,
`NAME_sum` and `NAME_count`. Every series is there from the start, at 0. Labels have the values that are listed here, or
that the configuration gives; no session, no model's and no user's word becomes one.

Each process of `--session-server-workers` answers on its own port with its own numbers: scrape every port, and add
counters and histograms up (`sum without (instance)`). Process metrics are of one process as well.

Counters begin at 0 with each process, with a store as well: what the process before counted is in the time series, and
`rate` and `increase` know the restart. A process that goes on with a stored session counts what it adds to it: turns
that were recorded or collected before are not counted again.
"""

_TAIL = """\
Tokens: `turnkeeper_tokens_sampled_total` counts what engines reported. What no turn holds is in
`turnkeeper_tokens_dropped_total`, by reason; calls of which nobody knows the tokens are in
`turnkeeper_calls_dropped_total`.
"""

_SHORT = 6
"""A label with so many values has them in its row; those of longer lists stand below the tables."""


def render_metrics() -> str:
    """Render the page."""
    parts = [_HEAD]
    for title, rows in SECTIONS:
        table = "\n".join(map(_render_row, rows))
        parts.append(f"## {title}\n\n| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n{table}\n")
    process = ", ".join(f"`{name}`" for name in PROCESS_SERIES)
    parts += [_TAIL, f"## The process\n\nOf the process itself, as every Python server has them: {process}.\n"]
    parts.append("## Long lists of values\n\n" + "\n".join(_render_lists()) + "\n")
    return "\n".join(parts)


def _render_row(row: MetricRow) -> str:
    name = row.series[0] if row.kind is MetricKind.COUNTER else row.name
    labels = ", ".join(map(_render_label, row.labels))
    meaning = f"{row.help} {row.tells}".strip()
    return f"| `{name}` | {row.kind} | {row.unit} | {labels} | {meaning} |"


def _render_label(label: MetricLabel) -> str:
    if not label.values:
        return f"`{label.name}` ({label.source})"
    if len(label.values) > _SHORT:
        return f"`{label.name}` (below)"
    return f"`{label.name}` (" + ", ".join(f"`{value}`" for value in label.values) + ")"


def _render_lists() -> Iterator[str]:
    for row in METRICS:
        for label in row.labels:
            if len(label.values) > _SHORT:
                values = ", ".join(f"`{value}`" for value in label.values)
                yield f"- `{label.name}` of `{row.name}`: {values}"
