"""The table of metrics, from which the registry and the reference page are made."""

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """The kinds of metrics."""

    COUNTER = "counter"
    """A number that only grows."""
    GAUGE = "gauge"
    """A number that may fall, read when metrics are scraped."""
    HISTOGRAM = "histogram"
    """Observations, counted in buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric. Its name has its unit; counters are written with ``_total`` behind their name."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> MetricRow:
    return MetricRow(name=name, kind=MetricKind.COUNTER, help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> MetricRow:
    return MetricRow(name=name, kind=MetricKind.GAUGE, help=text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> MetricRow:
    return MetricRow(name=name, kind=MetricKind.HISTOGRAM, help=text, labels=labels)


METRICS: tuple[MetricRow, ...] = (
    _gauge("turnkeeper_sessions", "Sessions that are open."),
    _gauge("turnkeeper_session_bytes", "Memory that all sessions take, every part of them."),
    _gauge("turnkeeper_spilled_bytes", "Routing rows of idle sessions that were moved to disk."),
    _gauge("turnkeeper_requests_in_flight", "Requests of agents that are being answered."),
    _gauge("turnkeeper_turns_in_flight", "Engine calls that run, or wait for their agent to come back."),
    _gauge("turnkeeper_draining", "1 once the server was told to stop."),
    _gauge("turnkeeper_engine_state", "1 for the state that the engines are in.", "state"),
    _gauge("turnkeeper_tokenizer", "1 for the library that makes ids of text.", "backend"),
    _gauge("turnkeeper_engine_routes", "Engine URLs, by what the probe found of the route to them.", "verdict"),
    _counter("turnkeeper_probe_tokens", "Tokens that engines sampled for this server's own probes, in no session."),
    _gauge("turnkeeper_event_loop_delay_seconds", "How late the event loop was when it was last looked at."),
    _counter("turnkeeper_sessions_created", "Sessions opened."),
    _counter("turnkeeper_sessions_ended", "Sessions ended, by reason.", "reason"),
    _counter("turnkeeper_turns", "Turns recorded, by dialect and finish reason.", "dialect", "finish_reason"),
    _counter("turnkeeper_replies", "Replies handed over: sampled, joined or replayed.", "how"),
    _counter("turnkeeper_fields_dropped", "Request fields that reached no engine, by name.", "field"),
    _counter(
        "turnkeeper_rewritten_replies", "Turns that go on from a reply that came back rewritten, by kind.", "kind"
    ),
    _counter("turnkeeper_equal_rows", "Routing rows that repeat the row before them, in runs of 32 or more."),
    _counter("turnkeeper_errors", "Requests that ended in an error, by its code.", "code"),
    _counter("turnkeeper_limits_reached", "Requests refused because the server has all it may have.", "limit"),
    _counter("turnkeeper_task_failures", "Failures of background tasks, by kind.", "task"),
    _counter("turnkeeper_tokens_sampled", "Tokens that engines reported as sampled."),
    _counter("turnkeeper_tokens_dropped", "Sampled tokens that no turn holds, by reason.", "reason"),
    _counter("turnkeeper_calls_dropped", "Abandoned engine calls of unknown length, by reason.", "reason"),
    _counter("turnkeeper_tokens_collected", "Tokens of turns, by what became of them when first collected.", "fate"),
    _counter(
        "turnkeeper_noncanonical_turns",
        "Turns whose sampled ids are not those that the tokenizer makes of their text, when first collected.",
    ),
    _counter("turnkeeper_leaves_dropped", "Turns without children that ended no sample when collected.", "cause"),
    _counter("turnkeeper_collects", "Collects of samples."),
    _counter("turnkeeper_tokenizer_comparisons", "Texts of turns encoded by both libraries, by outcome.", "outcome"),
    _counter("turnkeeper_tokenizer_refusals", "Texts that the fast library refused and the other encoded."),
    _histogram("turnkeeper_turn_seconds", "Time from a request's arrival to its turn's record."),
)
"""The metrics in the order of the reference page."""
