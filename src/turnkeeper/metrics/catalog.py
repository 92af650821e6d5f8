"""The table of metrics, from which the registry, the reference page and the check of dashboards are made.

Every label has a closed set of values, that of an enumeration or of the configuration: a series is there at 0 before
its first event, and neither a session nor a model's or a user's word becomes a label.
"""

from turnkeeper.choices import PauseMode, TokenizerBackend
from turnkeeper.core import Cause, DropReason, FinishReason, Label
from turnkeeper.dialects import DIALECTS
from turnkeeper.matching.arguments import RewriteKind
from turnkeeper.metrics.row import MetricRow, Unit, counter, gauge, histogram, label
from turnkeeper.metrics.values import CALL_OUTCOMES, ERROR_CODES, FIELD_NAMES, LEAF_CAUSES, OBSERVED, TASKS
from turnkeeper.telemetry import SessionEndReason, TurnEnd, TurnPhase

MOMENTS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Buckets for what the server itself takes, from a millisecond to ten seconds."""

TURN_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Buckets for turns and engine calls, which take from a tenth of a second to half an hour."""

PHASE_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Buckets for phases of turns, of which rendering takes milliseconds and generation up to half an hour."""

SIZE_BYTES = tuple(float(1 << power) for power in range(14, 33, 2))
"""Buckets for payloads: 16 KiB to 4 GiB, in steps of four."""


_ENGINE = label("engine", source="the URLs of `--backend-url`")
_ENGINE_STATES = ("serving", "paused", "unreachable")
_PHASE = label("phase", TurnPhase)
_LIMIT = label("limit", ("max_in_flight", "max_memory_bytes", "max_peer_connections", "max_sessions"))
_DROP_REASON = label("reason", DropReason)
_CONFIG = "configured"


_TURNS: tuple[MetricRow, ...] = (
    gauge("turnkeeper_requests_in_flight", "Requests of agents that are being answered."),
    gauge("turnkeeper_turns_in_flight", "Engine calls that run, or wait for their agent to come back."),
    gauge(
        "turnkeeper_turns_in_phase",
        "Turns in flight, by the phase that they are in.",
        _PHASE,
        tells="Where turns are right now: at the gate, at an engine, or held for an agent.",
    ),
    gauge(
        "turnkeeper_longest_in_phase_seconds",
        "How long the turn that is longest in a phase has been in it; 0 where there is none.",
        _PHASE,
        unit=Unit.SECONDS,
        tells="A stuck turn, and where it is stuck.",
    ),
    counter(
        "turnkeeper_turns",
        "Turns recorded, by dialect and finish reason.",
        label("dialect", (each.name for each in DIALECTS)),
        label("finish_reason", FinishReason),
        tells="The pace of the rollout. A rising share of `length` means that replies are cut by their token budget.",
    ),
    counter(
        "turnkeeper_turn_labels",
        "Turns recorded, by the label that they had when they were recorded and its likely cause.",
        label("label", Label),
        label("cause", Cause),
        tells="Forks: every `branch`, and every `root` whose cause is not `first`, renders a history again and may "
        "split a session into more samples.",
    ),
    counter(
        "turnkeeper_turns_ended",
        "Turns in flight that ended, by their end.",
        label("end", TurnEnd),
        tells="How many turns fail or are given up, of all that begin.",
    ),
    histogram(
        "turnkeeper_turn_seconds",
        "Time from a request's arrival to its turn's record.",
        TURN_S,
        tells="What an agent waits for.",
    ),
    histogram(
        "turnkeeper_first_token_seconds",
        "Time from a request's arrival to the first tokens that an engine streams for it.",
        TURN_S,
        tells="What an agent waits for before it sees anything. Observed where text goes out as it comes: not under "
        "`--on-abort restart`, which holds it back, and not of requests with a stop string.",
    ),
    histogram(
        "turnkeeper_turn_phase_seconds",
        "Time that an ended turn had spent in a phase, over all visits to it.",
        PHASE_S,
        _PHASE,
        tells="What turns spend their time on: here (`rendering`, `recording`), at the gate, or at an engine.",
    ),
    histogram(
        "turnkeeper_render_queue_seconds",
        "Time that a large prompt waited for a thread that renders.",
        MOMENTS_S,
        tells="Above 0.1 s the server has too few cores for its prompts: use more workers.",
    ),
    counter(
        "turnkeeper_replies",
        "Replies handed over: sampled, joined or replayed.",
        label("how", ("sampled", "joined", "replayed")),
    ),
    counter(
        "turnkeeper_rewritten_replies",
        "Turns that go on from a reply that came back rewritten, by kind.",
        label("kind", RewriteKind),
    ),
    counter(
        "turnkeeper_fields_dropped",
        "Request fields that reached no engine, by name; those on no list are counted as other.",
        label("field", FIELD_NAMES),
        tells="A field that agents set in vain. `marks.dropped_fields` of a turn names those counted as `other`.",
    ),
)

_TOKENS: tuple[MetricRow, ...] = (
    counter("turnkeeper_tokens_sampled", "Tokens that engines reported as sampled.", unit=Unit.TOKENS),
    counter(
        "turnkeeper_prompt_tokens",
        "Tokens of the prompts of recorded turns, repeated history included.",
        unit=Unit.TOKENS,
    ),
    counter(
        "turnkeeper_cached_tokens",
        "Prompt tokens of recorded turns that engines took from their prefix caches, as far as they count them.",
        unit=Unit.TOKENS,
        tells="Divided by `turnkeeper_prompt_tokens`, the hit rate of prefix caches. A drop means forks, or sessions "
        "that change engines.",
    ),
    counter(
        "turnkeeper_tokens_dropped", "Sampled tokens that no turn holds, by reason.", _DROP_REASON, unit=Unit.TOKENS
    ),
    counter("turnkeeper_calls_dropped", "Abandoned engine calls of unknown length, by reason.", _DROP_REASON),
    counter(
        "turnkeeper_tokens_collected",
        "Tokens of turns, by what became of them when first collected.",
        label("fate", ("trainable", "masked", "dropped")),
        unit=Unit.TOKENS,
        tells="The share of what was sampled that is trained on.",
    ),
    counter(
        "turnkeeper_noncanonical_turns",
        "Turns whose sampled ids are not those that the tokenizer makes of their text, when first collected.",
    ),
    counter(
        "turnkeeper_equal_rows",
        "Routing rows that repeat the row before them, in runs of 32 or more.",
        unit=Unit.ROWS,
    ),
)

_COLLECTS: tuple[MetricRow, ...] = (
    counter("turnkeeper_collects", "Collects of samples."),
    counter("turnkeeper_samples_collected", "Samples that collects returned, repeated ones included."),
    histogram(
        "turnkeeper_collect_seconds",
        "Time from a request for samples to their encoded payload.",
        TURN_S,
        tells="What the trainer waits for.",
    ),
    histogram("turnkeeper_collect_bytes", "Size of the payload of a collect.", SIZE_BYTES, unit=Unit.BYTES),
    counter(
        "turnkeeper_acknowledgements",
        "Receipts of collects that trainers acknowledged, repeated ones included.",
        tells="Payloads that reached their trainer, for trainers that acknowledge.",
    ),
    counter(
        "turnkeeper_leaves_dropped",
        "Turns without children that ended no sample when collected.",
        label("cause", LEAF_CAUSES),
    ),
)

_SESSIONS: tuple[MetricRow, ...] = (
    gauge("turnkeeper_sessions", "Sessions that are open."),
    gauge("turnkeeper_session_bytes", "Memory that all sessions take, every part of them.", unit=Unit.BYTES),
    gauge("turnkeeper_spilled_bytes", "Routing rows of idle sessions that were moved to disk.", unit=Unit.BYTES),
    counter("turnkeeper_sessions_created", "Sessions opened."),
    counter("turnkeeper_sessions_restored", "Sessions of a process before that were taken out of the store."),
    counter(
        "turnkeeper_sessions_ended",
        "Sessions ended, by reason.",
        label("reason", SessionEndReason),
        tells="`expired` sessions were never deleted: their trainer lost them, and their tokens with them.",
    ),
    gauge(
        "turnkeeper_limit",
        "The limit that an option sets, in the unit of the option.",
        _LIMIT,
        unit=Unit.OPTION,
        tells="How far the server is from refusing requests: beside `turnkeeper_sessions`, `turnkeeper_session_bytes` "
        "and `turnkeeper_requests_in_flight`.",
    ),
    counter("turnkeeper_limits_reached", "Requests refused because the server has all it may have.", _LIMIT),
)

_ENGINES: tuple[MetricRow, ...] = (
    gauge(
        "turnkeeper_engine_state",
        "1 for the state that the engines are in.",
        label("state", _ENGINE_STATES),
        unit=Unit.STATE,
    ),
    gauge(
        "turnkeeper_engine_status",
        "1 for the state that one engine was last seen in.",
        _ENGINE,
        label("state", _ENGINE_STATES),
        unit=Unit.STATE,
        tells="Which engine is away. All are 0 until an engine is first asked.",
    ),
    gauge(
        "turnkeeper_engine_routes",
        "Engine URLs, by what the probe found of the route to them.",
        label("verdict", ("unchecked", "sound", "unfit")),
        tells="An `unfit` route takes no turns; the log and `GET /health` say why.",
    ),
    gauge(
        "turnkeeper_engine_calls_running",
        "Generate calls that an engine has.",
        _ENGINE,
        tells="The load of each engine.",
    ),
    counter(
        "turnkeeper_engine_calls",
        "Generate calls that ended, by engine and outcome: answered, given_up, or the code of the error.",
        _ENGINE,
        label("outcome", CALL_OUTCOMES),
        tells="Which engine fails, and how.",
    ),
    histogram(
        "turnkeeper_engine_call_seconds",
        "Time from a generate call to its end, the wait for a connection included.",
        TURN_S,
        _ENGINE,
        tells="One engine that is slower than the others.",
    ),
    gauge(
        "turnkeeper_engine_weight_version",
        "The weight version of an engine where it is a whole number, else NaN.",
        _ENGINE,
        unit=Unit.VERSION,
        tells="Engines that missed an update: the versions of all engines should be equal between updates.",
    ),
    counter(
        "turnkeeper_engine_weight_changes",
        "How often an engine was seen with other weights than before.",
        _ENGINE,
        tells="The pace of updates, whatever the versions are called.",
    ),
    gauge("turnkeeper_paused", "1 while the engines are paused, and new turns wait.", unit=Unit.STATE),
    histogram(
        "turnkeeper_pause_seconds",
        "Length of a pause that has ended, by the mode that the trainer asked for; observed where it asked elsewhere.",
        TURN_S,
        label("mode", (*PauseMode, OBSERVED)),
        tells="How many pauses there were, and what updates cost the rollout.",
    ),
    counter(
        "turnkeeper_probe_tokens",
        "Tokens that engines sampled for this server's own probes, in no session.",
        unit=Unit.TOKENS,
    ),
)

_STORE: tuple[MetricRow, ...] = (
    gauge(
        "turnkeeper_store_waiting_writes",
        "Writes that wait for the store's writer.",
        tells="A disk that is too slow for the turns, where it stays above a few hundred.",
    ),
    counter("turnkeeper_store_writes", "Writes that were stored: openings, turns, deliveries, ends and receipts."),
    counter(
        "turnkeeper_store_transactions",
        "Transactions of the store, each of one group of writes.",
        tells="`turnkeeper_store_writes` divided by it is the size of a group, which grows with the load.",
    ),
    counter(
        "turnkeeper_store_transaction_seconds",
        "Time that transactions took, routing rows and syncs included.",
        unit=Unit.SECONDS,
        tells="Divided by `turnkeeper_store_transactions`, what one takes. What turns wait for it is in "
        "`turnkeeper_turn_phase_seconds` of `recording`.",
    ),
    counter(
        "turnkeeper_store_failed_writes",
        "Writes that failed.",
        tells="A full or broken disk: the turns of failed writes are answered with an error. `GET /health` has the "
        "newest failure.",
    ),
    gauge("turnkeeper_store_bytes", "What the store of this process takes on disk.", unit=Unit.BYTES),
    gauge("turnkeeper_store_sessions", "Sessions that the store of this process knows, ended ones included."),
    counter(
        "turnkeeper_store_removed_sessions",
        "Sessions that the store removed to stay within its limits, by whether all of their turns were collected.",
        label("fate", ("collected", "uncollected")),
        tells="`uncollected` ones are lost: raise `--store-max-bytes` or `--store-keep`, or collect sooner.",
    ),
    counter("turnkeeper_store_torn_sessions", "Sessions that were loaded without their last records."),
    counter(
        "turnkeeper_store_skipped_records",
        "Records that could not be read and were set aside.",
        tells="A damaged disk; the log names the sessions.",
    ),
)

_SERVER: tuple[MetricRow, ...] = (
    counter(
        "turnkeeper_errors",
        "Requests that ended in an error, by its code.",
        label("code", ERROR_CODES),
        tells="Codes are those of the [table of errors](http.md#errors).",
    ),
    counter("turnkeeper_task_failures", "Failures of background tasks, by kind.", label("task", TASKS)),
    gauge(
        "turnkeeper_event_loop_delay_seconds",
        "How late the event loop was when it was last looked at.",
        unit=Unit.SECONDS,
    ),
    histogram(
        "turnkeeper_event_loop_lag_seconds",
        "How late the event loop was, looked at ten times a second.",
        MOMENTS_S,
        tells="Whether something blocks the server: every stream stops for that long. Above 0.1 s use more workers.",
    ),
    gauge("turnkeeper_draining", "1 once the server was told to stop.", unit=Unit.STATE),
    gauge(
        "turnkeeper_tokenizer",
        "1 for the library that makes ids of text.",
        label("backend", (TokenizerBackend.TOKENIZERS, TokenizerBackend.FASTOKENS)),
        unit=Unit.STATE,
    ),
    counter(
        "turnkeeper_tokenizer_comparisons",
        "Texts of turns encoded by both libraries, by outcome.",
        label("outcome", ("equal", "different")),
    ),
    counter("turnkeeper_tokenizer_refusals", "Texts that the fast library refused and the other encoded."),
    gauge(
        "turnkeeper_build_info",
        "1; its labels say what runs.",
        *(label(name, source=_CONFIG) for name in ("version", "python")),
        unit=Unit.STATE,
    ),
    gauge(
        "turnkeeper_config_info",
        "1; its labels say how it was started.",
        *(
            label(name, source=_CONFIG)
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
    ("The store", _STORE),
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
