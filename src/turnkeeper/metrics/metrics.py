"""The metrics of the catalog as prometheus-client holds them.

Each instance has a registry of its own, so that two servers in one process do not share numbers.
"""

import re
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from turnkeeper.core import Event, Ledger
from turnkeeper.core.event import SessionOpened, TokensDropped, TurnCommitted
from turnkeeper.errors import CapacityError, TurnkeeperError
from turnkeeper.fields import FIELDS
from turnkeeper.metrics.catalog import METRICS, MetricKind, MetricRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The Prometheus text format."""

_FIELD_LABELS = 50
"""The number of unknown field names that get a label of their own; all others are counted as `other`."""
_FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, float("inf"))
"""The upper bounds of the buckets for turns, which take from a tenth of a second to half an hour."""


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {row.name: _build(row, self._registry) for row in METRICS}
        self._field_names: set[str] = set()

    def register_gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Let a gauge be read from a function, whenever metrics are scraped."""
        metric = self._metrics[name]
        (metric.labels(**labels) if labels else metric).set_function(read)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Raise a counter."""
        metric = self._metrics[name]
        (metric.labels(**labels) if labels else metric).inc(amount)

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._metrics[name].set(value)

    def record(self, event: Event) -> None:
        """Count an event of a session."""
        match event:
            case SessionOpened():
                self.count("turnkeeper_sessions_created")
            case TurnCommitted(turn=turn):
                completion = turn.completion
                reason = str(completion.finish_reason)
                self.count("turnkeeper_turns", dialect=turn.request.dialect, finish_reason=reason)
                self.count("turnkeeper_tokens_sampled", len(completion.ids))
                for name in completion.marks.get("dropped_fields", ()):
                    self.count("turnkeeper_fields_dropped", field=self._label_field(name))
                if equal_rows := completion.marks.get("rows_equal", 0):
                    self.count("turnkeeper_equal_rows", equal_rows)
                for kind in turn.rewrite.kinds if turn.rewrite else ():
                    self.count("turnkeeper_rewritten_replies", kind=str(kind))
                self._metrics["turnkeeper_turn_seconds"].observe(max(0.0, turn.committed_at - turn.begun_at))
            case TokensDropped(sampled_tokens=None):
                self.count("turnkeeper_calls_dropped", reason=str(event.reason))
            case TokensDropped(sampled_tokens=int(tokens)):
                self.count("turnkeeper_tokens_sampled", tokens)
                self.count("turnkeeper_tokens_dropped", tokens, reason=str(event.reason))
            case _:
                pass

    def _label_field(self, name: str) -> str:
        """Return a field's name as its label while there are few: agents invent names, and a label lasts as long as the
        server."""
        if name in FIELDS or name in self._field_names:
            return name
        if len(self._field_names) < _FIELD_LABELS and _FIELD_NAME.fullmatch(name):
            self._field_names.add(name)
            return name
        return "other"

    def record_collect(self, fresh: Ledger) -> None:
        """Count a collect, and the fate of the tokens of turns that no earlier collect had."""
        self.count("turnkeeper_collects")
        self.count("turnkeeper_tokens_collected", fresh.trainable, fate="trainable")
        self.count("turnkeeper_tokens_collected", sum(fresh.masked.values()), fate="masked")
        self.count("turnkeeper_tokens_collected", sum(fresh.dropped.values()), fate="dropped")

    def record_error(self, error: TurnkeeperError) -> None:
        """Count a request that ended in an error, and the limit that it met."""
        self.count("turnkeeper_errors", code=error.code)
        if isinstance(error, CapacityError):
            self.count("turnkeeper_limits_reached", limit=str(error.facts.get("limit")))

    def render(self) -> bytes:
        """Write all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


def _build(row: MetricRow, registry: CollectorRegistry) -> Any:
    match row.kind:
        case MetricKind.COUNTER:
            return Counter(row.name, row.help, row.labels, registry=registry)
        case MetricKind.GAUGE:
            return Gauge(row.name, row.help, row.labels, registry=registry)
        case MetricKind.HISTOGRAM:
            return Histogram(row.name, row.help, row.labels, registry=registry, buckets=_BUCKETS_S)
