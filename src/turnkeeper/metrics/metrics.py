"""The metrics of the catalog as prometheus-client holds them.

Each instance has a registry of its own, so that two servers in one process do not share numbers. Every series of the
catalog is there from the beginning, and is looked up once: `Metrics` keeps each under its name and labels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from math import nan
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

from turnkeeper.core import Event, Ledger
from turnkeeper.core.event import SessionOpened, TokensDropped, TurnCommitted
from turnkeeper.errors import CapacityError, TurnkeeperError
from turnkeeper.metrics.catalog import METRICS
from turnkeeper.metrics.row import MetricKind, MetricRow
from turnkeeper.metrics.values import ANSWERED, CALL_OUTCOMES, FIELD_NAMES, GIVEN_UP, OBSERVED, OTHER
from turnkeeper.telemetry import (
    EngineCallEnded,
    EngineChanged,
    PauseChanged,
    Report,
    SamplesAcknowledged,
    SamplesCollected,
    SessionRestored,
    TurnEnded,
    TurnPhase,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The Prometheus text format."""

_STATES = ("serving", "paused", "unreachable")
"""The states of engines."""


class Metrics:
    """The metrics of one server."""

    def __init__(self, engines: Sequence[str] = ()) -> None:
        """Make every series of the catalog.

        Args:
            engines: the URLs of the engines, which are the values of the label ``engine``.
        """
        engines = [name_engine(url) for url in engines]
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {row.name: _build(row, self._registry) for row in METRICS}
        self._series: dict[tuple[object, ...], Any] = {}
        self._totals: dict[tuple[object, ...], float] = {}
        self._refreshers: list[Callable[[], None]] = []
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        for row in METRICS:
            for labels in _list_labels(row, engines):
                self._find(row.name, labels)
        for engine in engines:
            self.set("turnkeeper_engine_weight_version", nan, engine=engine)
        self._phases = {
            phase: self._find("turnkeeper_turn_phase_seconds", {"phase": str(phase)}) for phase in TurnPhase
        }

    def register_gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Let a gauge be read from a function, whenever metrics are scraped."""
        series = self._find(name, labels)
        self.register_refresh(lambda: series.set(read()))

    def register_refresh(self, refresh: Callable[[], None]) -> None:
        """Call a function whenever metrics are scraped, so that it sets several gauges at once."""
        self._refreshers.append(refresh)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Raise a counter."""
        self._find(name, labels).inc(amount)

    def raise_to(self, name: str, total: float, **labels: str) -> None:
        """Raise a counter to a total that another part keeps."""
        key = (name, *labels.items())
        self.count(name, max(0.0, total - self._totals.get(key, 0.0)), **labels)
        self._totals[key] = total

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._find(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""
        self._find(name, labels).observe(value)

    def _find(self, name: str, labels: dict[str, str]) -> Any:
        """Find the series of a metric. Asking prometheus-client for it each time would cost as much as counting."""
        key = (name, *labels.items())
        found = self._series.get(key)
        if found is None:
            metric = self._metrics[name]
            found = self._series[key] = metric.labels(**labels) if labels else metric
        return found

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
                    self.count("turnkeeper_fields_dropped", field=name if name in FIELD_NAMES else OTHER)
                if equal_rows := completion.marks.get("rows_equal", 0):
                    self.count("turnkeeper_equal_rows", equal_rows)
                for kind in turn.rewrite.kinds if turn.rewrite else ():
                    self.count("turnkeeper_rewritten_replies", kind=str(kind))
                self.observe("turnkeeper_turn_seconds", max(0.0, turn.committed_at - turn.begun_at))
            case TokensDropped(sampled_tokens=None):
                self.count("turnkeeper_calls_dropped", reason=str(event.reason))
            case TokensDropped(sampled_tokens=int(tokens)):
                self.count("turnkeeper_tokens_sampled", tokens)
                self.count("turnkeeper_tokens_dropped", tokens, reason=str(event.reason))
            case _:
                pass

    def record_report(self, report: Report) -> None:
        """Count what a report says; reports of what events and errors say as well are left to those."""
        match report:
            case EngineCallEnded():
                engine = name_engine(report.url)
                self.observe("turnkeeper_engine_call_seconds", report.seconds, engine=engine)
                self.count("turnkeeper_engine_calls", engine=engine, outcome=_name_outcome(report))
            case TurnEnded():
                self._record_turn(report)
            case SamplesCollected():
                self.count("turnkeeper_samples_collected", report.samples)
                self.observe("turnkeeper_collect_seconds", report.seconds)
                self.observe("turnkeeper_collect_bytes", report.size_bytes)
            case SamplesAcknowledged():
                self.count("turnkeeper_acknowledgements")
            case SessionRestored():
                self.count("turnkeeper_sessions_restored")
            case EngineChanged():
                self._record_engine(report)
            case PauseChanged(is_paused=is_paused):
                self.set("turnkeeper_paused", is_paused)
                if not is_paused:
                    self.observe("turnkeeper_pause_seconds", report.seconds, mode=report.mode or OBSERVED)
            case _:
                pass

    def _record_turn(self, report: TurnEnded) -> None:
        self.count("turnkeeper_turns_ended", end=report.end)
        for phase, series in self._phases.items():
            series.observe(report.times.get(phase))
        if report.first_token_s is not None:
            self.observe("turnkeeper_first_token_seconds", report.first_token_s)
        if report.label is not None and report.cause is not None:
            self.count("turnkeeper_turn_labels", label=report.label, cause=report.cause)
            self.count("turnkeeper_prompt_tokens", report.prompt_tokens)
            self.count("turnkeeper_cached_tokens", report.cached_tokens)

    def _record_engine(self, report: EngineChanged) -> None:
        engine = name_engine(report.url)
        for state in _STATES:
            self.set("turnkeeper_engine_status", state == report.state, engine=engine, state=state)
        version, before = report.weight_version, report.weight_version_before
        self.set("turnkeeper_engine_weight_version", read_version(version), engine=engine)
        if before is not None and version != before:
            self.count("turnkeeper_engine_weight_changes", engine=engine)

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
        """Read every gauge, and write all metrics in the Prometheus text format."""
        self.refresh()
        return self.encode()

    def refresh(self) -> None:
        """Read every gauge from the part that knows its value; in the thread of the event loop."""
        for refresh in self._refreshers:
            refresh()

    def encode(self) -> bytes:
        """Write all metrics as they stand in the Prometheus text format, which takes 10 ms or more; in any thread."""
        return generate_latest(_WithoutBirths(self._registry))


class _WithoutBirths:
    """A registry without the times at which its series began, which prometheus-client writes as a gauge of each: they
    would double the series, and Prometheus makes nothing of them in this format."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def name_engine(url: str) -> str:
    """Name an engine for the label ``engine``: its URL without a slash at the end, and without user and password."""
    scheme, separator, rest = url.rstrip("/").partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{separator}{place.rpartition('@')[2]}{slash}{path}"


def read_version(version: str | None) -> float:
    """Read a weight version as the value of a gauge: a whole number as itself, anything else as NaN."""
    return float(version) if version is not None and version.isascii() and version.isdecimal() else nan


def _name_outcome(report: EngineCallEnded) -> str:
    if report.is_cancelled:
        return GIVEN_UP
    if report.error is None:
        return ANSWERED
    code = report.error.code if isinstance(report.error, TurnkeeperError) else OTHER
    return code if code in CALL_OUTCOMES else OTHER


def _list_labels(row: MetricRow, engines: Sequence[str]) -> Iterable[dict[str, str]]:
    """List the labels of every series of a metric; none where the configuration gives them one by one."""
    values = [engines if label.name == "engine" else label.values for label in row.labels]
    names = [label.name for label in row.labels]
    return (dict(zip(names, each, strict=True)) for each in product(*values))


def _build(row: MetricRow, registry: CollectorRegistry) -> Any:
    names = [label.name for label in row.labels]
    match row.kind:
        case MetricKind.COUNTER:
            return Counter(row.name, row.help, names, registry=registry)
        case MetricKind.GAUGE:
            return Gauge(row.name, row.help, names, registry=registry)
        case MetricKind.HISTOGRAM:
            return Histogram(row.name, row.help, names, registry=registry, buckets=row.buckets)
