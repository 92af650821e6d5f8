"""The table of metrics, from which the registry, the reference page and the check of dashboards are made.

Every label has a closed set of values, that of an enumeration or of the configuration: a series is there at 0 before
its first event, and neither a session nor a model's or a user's word becomes a label.
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper import errors
from turnkeeper.choices import PauseMode, TokenizerBackend
from turnkeeper.core import Cause, DropReason, FinishReason, Label
from turnkeeper.dialects import DIALECTS
from turnkeeper.errors import EngineError, TurnkeeperError
from turnkeeper.fields import TABLE, is_reaching
from turnkeeper.matching.arguments import RewriteKind
from turnkeeper.samples.collect import UNTRAINED
from turnkeeper.telemetry import TurnEnd, TurnPhase


class MetricKind(StrEnum):
    """The kinds of metrics."""

    COUNTER = "counter"
    """A number that only grows."""
    GAUGE = "gauge"
    """A number that may fall, read when metrics are scraped."""
    HISTOGRAM = "histogram"
    """Observations, counted in buckets."""


class Unit(StrEnum):
    """What a metric counts or measures."""

    COUNT = "count"
    STATE = "0 or 1"
    SECONDS = "seconds"
    BYTES = "bytes"
    TOKENS = "tokens"
    ROWS = "rows"
    VERSION = "version"
    OPTION = "as the option"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLabel:
    """One label, with all values that it can have."""

    name: str
    values: tuple[str, ...] = ()
    """The values, from the code; empty where the configuration gives them."""
    source: str = ""
    """Where the configuration says the values; empty where they are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric. Its name has its unit; counters are written with ``_total`` behind their name."""

    name: str
    kind: MetricKind
    unit: Unit
    help: str
    """What is counted or measured, in one sentence; it stands in the exposition."""
    tells: str = ""
    """What an operator learns from it, for the reference page."""
    labels: tuple[MetricLabel, ...] = ()
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, without the last one, which is infinite."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in the exposition."""
        match self.kind:
            case MetricKind.COUNTER:
                return (f"{self.name}_total",)
            case MetricKind.GAUGE:
                return (self.name,)
            case MetricKind.HISTOGRAM:
                return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")


OTHER = "other"
"""The value of a label for whatever is on no list, such as the names of fields that agents invent."""

ANSWERED, GIVEN_UP = "answered", "given_up"
"""The outcomes of engine calls that are no error: a reply, and a call that was given up before its reply."""

OBSERVED = "observed"
"""The mode of a pause that no trainer requested here: an engine was seen paused."""

MOMENTS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets for what the server itself takes, from a millisecond to ten seconds."""

TURN_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Buckets for turns and engine calls, which take from a tenth of a second to half an hour."""

PHASE_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Buckets for phases of turns, of which rendering takes milliseconds and generation up to half an hour."""

SIZE_BYTES = tuple(float(1 << power) for power in range(14, 33, 2))
"""Buckets for payloads: 16 KiB to 4 GiB, in steps of four."""


def _list_codes(root: type[TurnkeeperError]) -> tuple[str, ...]:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    return tuple(sorted({each.code for each in classes if issubclass(each, root)}))


ERROR_CODES = _list_codes(TurnkeeperError)
"""The code of every error."""

CALL_OUTCOMES = (ANSWERED, GIVEN_UP, *_list_codes(EngineError), OTHER)
"""The outcomes of engine calls."""

LEAF_CAUSES = (
    *Cause,
    DropReason.SUPERSEDED,
    DropReason.UNDELIVERED,
    DropReason.OVER_MAX_SEQ_LEN,
    DropReason.NOT_PICKED,
    UNTRAINED,
)
"""The causes for which a turn without children ends no sample."""

FIELD_NAMES = (*sorted(row.name for row in TABLE if is_reaching(row)), OTHER)
"""The fields that some engine wire takes, and all others together."""

TASKS = (
    "engine_aborts",
    "engine_looks",
    "engine_routes",
    "engine_watch",
    "hang_up_watches",
    "loop_delay",
    "memory_relief",
    "reconnect_grace",
    "session_sweep",
    "store_retention",
    "tokenizer",
    "turn_delays",
    "turns",
)
"""The background tasks of a server, by the names that ``GET /health`` shows."""


def _label(name: str, values: Iterable[str] = (), *, source: str = "") -> MetricLabel:
    return MetricLabel(name=name, values=tuple(map(str, values)), source=source)


_ENGINE = _label("engine", source="the URLs of `--backend-url`")
_ENGINE_STATES = ("serving", "paused", "unreachable")
_PHASE = _label("phase", TurnPhase)
_LIMIT = _label("limit", ("max_in_flight", "max_memory_bytes", "max_peer_connections", "max_sessions"))
_DROP_REASON = _label("reason", DropReason)
_CONFIG = "configured"


def _counter(name: str, text: str, *labels: MetricLabel, unit: Unit = Unit.COUNT, tells: str = "") -> MetricRow:
    return MetricRow(name=name, kind=MetricKind.COUNTER, unit=unit, help=text, tells=tells, labels=labels)


def _gauge(name: str, text: str, *labels: MetricLabel, unit: Unit = Unit.COUNT, tells: str = "") -> MetricRow:
    return MetricRow(name=name, kind=MetricKind.GAUGE, unit=unit, help=text, tells=tells, labels=labels)


def _histogram(
    name: str,
    text: str,
    buckets: tuple[float, ...],
    *labels: MetricLabel,
    unit: Unit = Unit.SECONDS,
    tells: str = "",
) -> MetricRow:
    return MetricRow(
        name=name, kind=MetricKind.HISTOGRAM, unit=unit, help=text, tells=tells, labels=labels, buckets=buckets
    )


_TURNS: tuple[MetricRow, ...] = (
    _gauge("turnkeeper_requests_in_flight", "Requests of agents that are being answered."),
    _gauge("turnkeeper_turns_in_flight", "Engine calls that run, or wait for their agent to come back."),
    _gauge(
        "turnkeeper_turns_in_phase",
        "Turns in flight, by the phase that they are in.",
        _PHASE,
        tells="Where turns are right now: at the gate, at an engine, or held for an agent.",
    ),
    _gauge(
        "turnkeeper_longest_in_phase_seconds",
        "How long the turn that is longest in a phase has been in it; 0 where there is none.",
        _PHASE,
        unit=Unit.SECONDS,
        tells="A stuck turn, and where it is stuck.",
    ),
    _counter(
        "turnkeeper_turns",
        "Turns recorded, by dialect and finish reason.",
        _label("dialect", (each.name for each in DIALECTS)),
        _label("finish_reason", FinishReason),
        tells="The pace of the rollout. A rising share of `length` means that replies are cut by their token budget.",
    ),
    _counter(
        "turnkeeper_turn_labels",
        "Turns recorded, by the label that they had when they were recorded and its likely cause.",
        _label("label", Label),
        _label("cause", Cause),
        tells="Forks: every `branch`, and every `root` whose cause is not `first`, renders a history again and may "
        "split a session into more samples.",
    ),
    _counter(
        "turnkeeper_turns_ended",
        "Turns in flight that ended, by their end.",
        _label("end", TurnEnd),
        tells="How many turns fail or are given up, of all that begin.",
    ),
    _histogram(
        "turnkeeper_turn_seconds",
        "Time from a request's arrival to its turn's record.",
        TURN_S,
        tells="What an agent waits for.",
    ),
    _histogram(
        "turnkeeper_turn_phase_seconds",
        "Time that an ended turn had spent in a phase, over all visits to it.",
        PHASE_S,
        _PHASE,
        tells="What turns spend their time on: here (`rendering`, `recording`), at the gate, or at an engine.",
    ),
    _histogram(
        "turnkeeper_render_queue_seconds",
        "Time that a large prompt waited for a thread that renders.",
        MOMENTS_S,
        tells="Above 0.1 s the server has too few cores for its prompts: use more workers.",
    ),
    _counter(
        "turnkeeper_replies",
        "Replies handed over: sampled, joined or replayed.",
        _label("how", ("sampled", "joined", "replayed")),
    ),
    _counter(
        "turnkeeper_rewritten_replies",
        "Turns that go on from a reply that came back rewritten, by kind.",
        _label("kind", RewriteKind),
    ),
    _counter(
        "turnkeeper_fields_dropped",
        "Request fields that reached no engine, by name; those on no list are counted as other.",
        _label("field", FIELD_NAMES),
        tells="A field that agents set in vain. `marks.dropped_fields` of a turn names those counted as `other`.",
    ),
)

_TOKENS: tuple[MetricRow, ...] = (
    _counter("turnkeeper_tokens_sampled", "Tokens that engines reported as sampled.", unit=Unit.TOKENS),
    _counter(
        "turnkeeper_prompt_tokens",
        "Tokens of the prompts of recorded turns, repeated history included.",
        unit=Unit.TOKENS,
    ),
    _counter(
        "turnkeeper_cached_tokens",
        "Prompt tokens of recorded turns that engines took from their prefix caches, as far as they count them.",
        unit=Unit.TOKENS,
        tells="Divided by `turnkeeper_prompt_tokens`, the hit rate of prefix caches. A drop means forks, or sessions "
        "that change engines.",
    ),
    _counter(
        "turnkeeper_tokens_dropped", "Sampled tokens that no turn holds, by reason.", _DROP_REASON, unit=Unit.TOKENS
    ),
    _counter("turnkeeper_calls_dropped", "Abandoned engine calls of unknown length, by reason.", _DROP_REASON),
    _counter(
        "turnkeeper_tokens_collected",
        "Tokens of turns, by what became of them when first collected.",
        _label("fate", ("trainable", "masked", "dropped")),
        unit=Unit.TOKENS,
        tells="The share of what was sampled that is trained on.",
    ),
    _counter(
        "turnkeeper_noncanonical_turns",
        "Turns whose sampled ids are not those that the tokenizer makes of their text, when first collected.",
    ),
    _counter(
        "turnkeeper_equal_rows",
        "Routing rows that repeat the row before them, in runs of 32 or more.",
        unit=Unit.ROWS,
    ),
)

_COLLECTS: tuple[MetricRow, ...] = (
    _counter("turnkeeper_collects", "Collects of samples."),
    _counter("turnkeeper_samples_collected", "Samples that collects returned, repeated ones included."),
    _histogram(
        "turnkeeper_collect_seconds",
        "Time from a request for samples to their encoded payload.",
        TURN_S,
        tells="What the trainer waits for.",
    ),
    _histogram("turnkeeper_collect_bytes", "Size of the payload of a collect.", SIZE_BYTES, unit=Unit.BYTES),
    _counter(
        "turnkeeper_leaves_dropped",
        "Turns without children that ended no sample when collected.",
        _label("cause", LEAF_CAUSES),
    ),
)

_SESSIONS: tuple[MetricRow, ...] = (
    _gauge("turnkeeper_sessions", "Sessions that are open."),
    _gauge("turnkeeper_session_bytes", "Memory that all sessions take, every part of them.", unit=Unit.BYTES),
    _gauge("turnkeeper_spilled_bytes", "Routing rows of idle sessions that were moved to disk.", unit=Unit.BYTES),
    _counter("turnkeeper_sessions_created", "Sessions opened."),
    _counter(
        "turnkeeper_sessions_ended",
        "Sessions ended, by reason.",
        _label("reason", ("deleted", "expired", "its first turn was refused", "the server is stopping")),
        tells="`expired` sessions were never deleted: their trainer lost them, and their tokens with them.",
    ),
    _gauge(
        "turnkeeper_limit",
        "The limit that an option sets, in the unit of the option.",
        _LIMIT,
        unit=Unit.OPTION,
        tells="How far the server is from refusing requests: beside `turnkeeper_sessions`, `turnkeeper_session_bytes` "
        "and `turnkeeper_requests_in_flight`.",
    ),
    _counter("turnkeeper_limits_reached", "Requests refused because the server has all it may have.", _LIMIT),
)

_ENGINES: tuple[MetricRow, ...] = (
    _gauge(
        "turnkeeper_engine_state",
        "1 for the state that the engines are in.",
        _label("state", _ENGINE_STATES),
        unit=Unit.STATE,
    ),
    _gauge(
        "turnkeeper_engine_status",
        "1 for the state that one engine was last seen in.",
        _ENGINE,
        _label("state", _ENGINE_STATES),
        unit=Unit.STATE,
        tells="Which engine is away. All are 0 until an engine is first asked.",
    ),
    _gauge(
        "turnkeeper_engine_routes",
        "Engine URLs, by what the probe found of the route to them.",
        _label("verdict", ("unchecked", "sound", "unfit")),
        tells="An `unfit` route takes no turns; the log and `GET /health` say why.",
    ),
    _gauge(
        "turnkeeper_engine_calls_running",
        "Generate calls that an engine has.",
        _ENGINE,
        tells="The load of each engine.",
    ),
    _counter(
        "turnkeeper_engine_calls",
        "Generate calls that ended, by engine and outcome: answered, given_up, or the code of the error.",
        _ENGINE,
        _label("outcome", CALL_OUTCOMES),
        tells="Which engine fails, and how.",
    ),
    _histogram(
        "turnkeeper_engine_call_seconds",
        "Time from a generate call to its end, the wait for a connection included.",
        TURN_S,
        _ENGINE,
        tells="One engine that is slower than the others.",
    ),
    _gauge(
        "turnkeeper_engine_weight_version",
        "The weight version of an engine where it is a whole number, else NaN.",
        _ENGINE,
        unit=Unit.VERSION,
        tells="Engines that missed an update: the versions of all engines should be equal between updates.",
    ),
    _counter(
        "turnkeeper_engine_weight_changes",
        "How often an engine was seen with other weights than before.",
        _ENGINE,
        tells="The pace of updates, whatever the versions are called.",
    ),
    _gauge("turnkeeper_paused", "1 while the engines are paused, and new turns wait.", unit=Unit.STATE),
    _histogram(
        "turnkeeper_pause_seconds",
        "Length of a pause that has ended, by the mode that the trainer asked for; observed where it asked elsewhere.",
        TURN_S,
        _label("mode", (*PauseMode, OBSERVED)),
        tells="How many pauses there were, and what updates cost the rollout.",
    ),
    _counter(
        "turnkeeper_probe_tokens",
        "Tokens that engines sampled for this server's own probes, in no session.",
        unit=Unit.TOKENS,
    ),
)

_SERVER: tuple[MetricRow, ...] = (
    _counter(
        "turnkeeper_errors",
        "Requests that ended in an error, by its code.",
        _label("code", ERROR_CODES),
        tells="Codes are those of the [table of errors](http.md#errors).",
    ),
    _counter("turnkeeper_task_failures", "Failures of background tasks, by kind.", _label("task", TASKS)),
    _gauge(
        "turnkeeper_event_loop_delay_seconds",
        "How late the event loop was when it was last looked at.",
        unit=Unit.SECONDS,
    ),
    _histogram(
        "turnkeeper_event_loop_lag_seconds",
        "How late the event loop was, looked at ten times a second.",
        MOMENTS_S,
        tells="Whether something blocks the server: every stream stops for that long. Above 0.1 s use more workers.",
    ),
    _gauge("turnkeeper_draining", "1 once the server was told to stop.", unit=Unit.STATE),
    _gauge(
        "turnkeeper_tokenizer",
        "1 for the library that makes ids of text.",
        _label("backend", (TokenizerBackend.TOKENIZERS, TokenizerBackend.FASTOKENS)),
        unit=Unit.STATE,
    ),
    _counter(
        "turnkeeper_tokenizer_comparisons",
        "Texts of turns encoded by both libraries, by outcome.",
        _label("outcome", ("equal", "different")),
    ),
    _counter("turnkeeper_tokenizer_refusals", "Texts that the fast library refused and the other encoded."),
    _gauge(
        "turnkeeper_build_info",
        "1; its labels say what runs.",
        *(_label(name, source=_CONFIG) for name in ("version", "python")),
        unit=Unit.STATE,
    ),
    _gauge(
        "turnkeeper_config_info",
        "1; its labels say how it was started.",
        *(
            _label(name, source=_CONFIG)
            for name in ("family", "history", "pause_mode", "routing_replay", "on_abort", "store", "workers")
        ),
        unit=Unit.STATE,
        tells="Join it to another metric, to compare runs by their configuration.",
    ),
)

SECTIONS: tuple[tuple[str, tuple[MetricRow, ...]], ...] = (
    ("Turns", _TURNS),
    ("Tokens", _TOKENS),
    ("Collects", _COLLECTS),
    ("Sessions", _SESSIONS),
    ("Engines", _ENGINES),
    ("The server", _SERVER),
)
"""The metrics by what they are about, in the order of the reference page."""

METRICS: tuple[MetricRow, ...] = tuple(row for _, rows in SECTIONS for row in rows)
"""Every metric."""

PROCESS_SERIES = (
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
    "python_gc_objects_collected_total",
    "python_gc_objects_uncollectable_total",
    "python_gc_collections_total",
    "python_info",
)
"""The series that prometheus-client adds of the process itself; those of `process_` on Linux alone."""
