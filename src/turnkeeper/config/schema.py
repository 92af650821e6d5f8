"""The options, each declared once: a field, its type, its default and the text beneath it.

The first paragraph of the text says what the option does, the second when to change it. `turnkeeper.config.option`
makes flag, environment variable, TOML key and a row of the docs out of a field. A name that ends in ``_s`` is a
duration in seconds, and the flag goes without the ending. Values are checked one by one here; conditions between
options are in `turnkeeper.config.rules`, and what follows from options is in `turnkeeper.config.resolve`.
"""

from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field

from turnkeeper.choices import (
    EngineKind,
    EngineWire,
    OnAbort,
    OnBadRows,
    OnImage,
    OnRecomputed,
    OnRewrittenCalls,
    OnToolsChange,
    OnTruncated,
    PauseMode,
    RenderTools,
    RowsKept,
    TokenizerBackend,
)
from turnkeeper.jsontypes import JsonObject


def _parse_object(value: Any) -> Any:
    try:
        return orjson.loads(value) if isinstance(value, str | bytes) else value
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not a JSON object: {error}") from error


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    return (value,) if isinstance(value, int) else value


def _split_lines(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.replace("\n", ",").split(",") if part.strip())
    return value


def _is_given(value: Any) -> Any:
    return value.lower() not in ("", "0", "false", "no", "off") if isinstance(value, str) else value


def _parse_version(value: Any) -> Any:
    if isinstance(value, bool):
        return "v1" if value else None
    return value


Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Grace = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Bytes = Annotated[ByteSize, Field(ge=1)]


class ForTests:
    """Marks an option that nobody but tests has reason to change: it works as every other, and no help shows it."""


class SettingsSection(BaseModel):
    """A group of options: a panel of ``--help``, a heading of the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class ModelSection(SettingsSection):
    """Model: whose conversations are kept, and how they become tokens."""

    hf_checkpoint: str | None = None
    """Folder with the checkpoint's tokenizer, config.json and chat template.

    Set it always: a server cannot start without it.
    """
    tito_model: str = "default"
    """Family of the model's chat format; `default` renders with the checkpoint's own template as well as it can.

    Set it to the family of the model that is trained; `turnkeeper verify` shows how far `default` holds.
    """
    chat_template_path: str | None = None
    """Jinja file in place of the checkpoint's template; for the family `default` only.

    Set it where the policy is trained with another template than the one in its checkpoint.
    """
    apply_chat_template_kwargs: Annotated[JsonObject, BeforeValidator(_parse_object)] = Field(
        default_factory=dict[str, Any]
    )
    """Template arguments of every conversation, as a JSON object.

    Set it to what the trainer passes to the template, such as `{"enable_thinking": false}`.
    """
    render_tools: RenderTools = RenderTools.AS_SENT
    """Form in which tools are rendered; a policy must be trained, evaluated and served with one and the same.

    Take `engine` for a policy that was trained on prompts rendered by SGLang's chat route.
    """
    tokenizer_backend: TokenizerBackend = TokenizerBackend.AUTO
    """Library that makes ids of text; decoding is always that of `tokenizers`.

    Take `tokenizers` to rule the fast library out, `fastokens` to have it from the first turn on.
    """
    max_seq_len: Count | None = None
    """Token limit of a session that names none; samples are cut to it. Unset: the checkpoint's context length.

    Set it to the longest sample that the trainer can take, so that no tokens are sampled in vain.
    """
    num_layers: Count | None = None
    """Layers of the model, where its config.json does not say.

    Set it where the server says at start that config.json describes no mixture of experts.
    """
    moe_router_topk: Count | None = None
    """Experts each token is routed to, where config.json does not say.

    Set it where the server says at start that config.json describes no mixture of experts.
    """
    num_experts: Count | None = None
    """Experts of a layer, where config.json does not say.

    Set it where the server says at start that config.json describes no mixture of experts.
    """


class EngineSection(SettingsSection):
    """Engine: what generates, and what weight updates do to it."""

    backend_url: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Address of an engine or a router; repeat it for several, and sessions spread over them.

    Set it always: it is where turns are generated.
    """
    engine_api_key: Annotated[str | None, Field(repr=False)] = None
    """Key that is sent to engines and routers as a bearer token.

    Set it where engines or the router demand a key; prefer the file: process lists show flags at first.
    """
    engine_api_key_file: str | None = None
    """File that holds the key for the engines.

    Set it where engines or the router demand a key.
    """
    engine: EngineKind = EngineKind.AUTO
    """Whose wire the engine speaks; `auto` asks it.

    Set it where a router in between hides from the server which engine answers.
    """
    engine_wire: EngineWire = EngineWire.CHAT
    """Route that generates. Unset: `chat`, and `generate` where prefill and decode run on separate servers.

    Take `generate` where a router leaves `meta_info` out of chat replies; /health says so.
    """
    strict_probe: bool = False
    """Fail at start if an engine does not answer or cannot do what is asked of it; else /health says so.

    Turn it on in jobs that should fail at once, rather than wait for an engine that is not right.
    """
    pause_generation_mode: PauseMode = PauseMode.RETRACT
    """How the trainer pauses the engines for a weight update.

    Set it to the mode in which the trainer pauses its engines.
    """
    on_abort: OnAbort = OnAbort.RESTART
    """What happens to a turn that a weight update aborted.

    Take `resume` to keep the tokens of long turns, `fail` to let agents decide.
    """
    abort_attempts: Count = 8
    """How often one turn is continued after such aborts before it fails.

    Raise it where turns are so long that more weight updates than this fall into one of them.
    """
    lora_name: Annotated[str, Field(min_length=1)] | None = None
    """Adapter that every turn is sampled with, under the name that the engines know it by. Unset: the base weights.

    Set it where a trained adapter, not the base model, is to be sampled.
    """
    forward_field: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Request field on no list that reaches the engines as it comes; repeat it for several. Others are left out.

    Set it for a field of your engine that `marks.dropped_fields` of a turn lists.
    """
    custom_rollout_request_hook_path: str | None = None
    """Function that is asked before each engine call of a turn, as an import path: it adds headers and fields.

    Set it where engines stand behind a gate that admits calls by weight version, or by a header of yours.
    """
    custom_rollout_request_hook_args: Annotated[JsonObject, BeforeValidator(_parse_object)] = Field(
        default_factory=dict[str, Any]
    )
    """First argument of that function, as a JSON object.

    Set it to what your function reads.
    """
    cache_salt_by_version: bool = False
    """Send a `cache_salt` made of session and weight version, so that no prefix computed by older weights is reused.

    Turn it on where engines keep their prefix cache over a weight update and no token may rest on old weights.
    """


class ServerSection(SettingsSection):
    """Server: where it listens, and whom it serves."""

    use_session_server: Annotated[str | None, BeforeValidator(_parse_version)] = None
    """Session server version: `v1` keeps one line of turns, `v2` a tree. Alone it means v1, and `serve` starts v1.

    Take `v2` where agents branch, compact their history or run sub-agents.
    """
    session_server_ip: str = "127.0.0.1"
    """Address to listen on.

    Set it to `0.0.0.0` where agents run on other machines.
    """
    session_server_port: Annotated[tuple[Annotated[int, Field(ge=0, le=65535)], ...], BeforeValidator(_split)] = (
        30100,
    )
    """First port to listen on; 0 takes a free one and prints it.

    Set it where the port is taken, or to 0 in tests and on shared machines.
    """
    session_server_workers: int = 1
    """Independent processes, on consecutive ports from the first.

    Raise it where one process has a whole core busy; agents then need the address of their session's worker.
    """
    session_server_instance_id: str | None = None
    """Name of this instance in /health. Unset: a random one.

    Set it where a trainer must tell its servers apart; it passes the name by itself.
    """
    api_key: Annotated[tuple[str, ...], BeforeValidator(_split), Field(repr=False)] = ()
    """Key of the admin; repeat it for several. Agents send that of their session. Unset: anybody may do everything.

    Set it where others than your agents can reach the port; prefer the file: process lists show flags at first.
    """
    api_key_file: str | None = None
    """File with keys of the admin, one on a line.

    Set it where others than your agents can reach the port.
    """
    auto_create_sessions: bool = False
    """Create the session that a request names, if there is none.

    Turn it on for agents that can only be given an id and cannot create a session first.
    """
    allow_unrecorded: bool = False
    """Pass on requests to engine routes that generate tokens outside of any turn.

    Turn it on for harnesses that also call the engine for text that is never trained.
    """
    pass_through: Annotated[tuple[str, ...], BeforeValidator(_split_lines)] = ()
    """Method and path of an engine route that agents may call, such as `GET server_info`; repeat it for several.

    Set it for a route of the engine that agents need and the server refuses to pass on.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages that are logged.

    Take `debug` to look for a fault, `warning` where the log grows too fast.
    """


class HistorySection(SettingsSection):
    """History: what a replayed conversation continues, and what it becomes."""

    session_message_matcher: str = "tolerant"
    """When a replayed message is the stored one: strict, loose_tool_call, tolerant, role_content_only or a path.

    Change it for a harness that rewrites history in ways that you know to be harmless, or to allow none.
    """
    on_rewritten_calls: OnRewrittenCalls = OnRewrittenCalls.FIRST
    """A stored reply that comes back under its own call ids with other arguments, under the matcher tolerant.

    Change it where a harness repairs the arguments of tool calls and the repaired form is to be trained.
    """
    session_max_rollback: Annotated[int, Field(ge=0)] = 1
    """Turns that a request may step back behind under v1; more is refused.

    Raise it for agents under v1 that take back more than their last turn.
    """
    on_tools_change: OnToolsChange | None = None
    """A request that continues a path with other tools. Unset: `keep` under v1, `fork` under v2.

    Take `refuse` to find out whether an agent changes its tools, `fork` where it means to start anew.
    """
    on_truncated: OnTruncated | None = None
    """A request that extends a turn which ended by length; a session's own wins. Unset: v1 `bridge`, v2 `close`.

    Take `close` where nothing may follow a reply that was cut off, `bridge` where agents go on.
    """
    on_image: OnImage = OnImage.REFUSE
    """An image that an agent sends, be it a tool's result or the user's; a session holds text only.

    Change it for agents that send screenshots to a model that reads text only.
    """
    sample_past_truncation: bool = False
    """Let samples go on behind a truncated turn, flagged; otherwise they end there.

    Turn it on where turns that follow a cut-off reply are wanted for training.
    """
    train_models: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Models that are trained, as agents name them; turns of other models carry no loss. Unset: all.

    Set it where one agent calls several models by name and only some of them are trained.
    """
    session_sample_picker_path: str = "drop_retries"
    """Which leaves become samples under v2: drop_retries, keep_siblings, another built-in name or an import path.

    Change it to train leaves that the agent rejected, or to choose leaves by a rule of your own.
    """
    session_sample_postprocessor_path: str = "default_postprocess"
    """What happens to picked samples under v2: default_postprocess, another built-in name or an import path.

    Change it to set rewards, masks or metadata by a rule of your own.
    """
    save_debug_trajectory_data: Annotated[bool, BeforeValidator(_is_given)] = False
    """Put each sample's messages into its metadata.

    Turn it on to read conversations beside their tokens; samples become much larger.
    """


class RoutingSection(SettingsSection):
    """Routing replay: the experts that each token was routed to."""

    use_rollout_routing_replay: bool = False
    """Ask the engine for routed experts, and put them into samples.

    Turn it on to train a mixture of experts through the experts that the rollout used.
    """
    use_rollout_indexer_replay: bool = False
    """Ask the engine for the sparse-attention indexer's choices, and put them into samples.

    Turn it on to train a model with sparse attention through the rollout's choices.
    """
    r3_rows: RowsKept = RowsKept.DECODE
    """Rows kept where a later payload differs: `decode`, those that sampled the token, or `latest`.

    Take `latest` for a trainer whose results are to be compared with those over the session server of miles.
    """
    r3_recomputed: OnRecomputed = OnRecomputed.KEEP
    """A turn whose rows the engine computed again after a retraction.

    Take `mask` where tokens must not be trained whose rows were computed by other weights than sampled them.
    """
    on_bad_rows: OnBadRows = OnBadRows.FAIL
    """A reply whose rows cannot be true.

    Take `mask` to keep a run alive while a fault of the engine is looked for.
    """


class TimeoutsSection(SettingsSection):
    """Timeouts: each is longer than those that it contains."""

    engine_timeout_s: Duration = 1800.0
    """One engine call.

    Raise it where a single reply may take longer than half an hour.
    """
    request_timeout_s: Duration | None = None
    """One turn, with its waits and engine calls. Unset: twice the longer of engine and gate timeout.

    Set it where turns shall fail sooner than their engine calls and waits together might take.
    """
    drain_timeout_s: Grace = 120.0
    """How long a server that is told to stop waits for turns in flight and for its sessions to be collected.

    Raise it where a turn and the collect behind it take longer than two minutes; 0 stops at once.
    """
    read_timeout_s: Duration = 60.0
    """The head of a request, and each further 16 KiB of its body, however long the whole body takes.

    Raise it for clients whose network stalls for longer than a minute.
    """
    gate_timeout_s: Duration = 600.0
    """A new turn's wait while the engines are paused.

    Raise it where a weight update takes longer than ten minutes.
    """
    abort_grace_s: Grace = 2.0
    """How long after an abort the pause may become known for the abort to belong to that weight update.

    Raise it where turns end as aborted although a weight update was about to pause the engines.
    """
    reconnect_grace_s: Grace = 1.0
    """How long the engine call of a client that hung up is kept for its retry.

    Raise it for agents whose clients wait longer than a second before they send a lost request again.
    """
    replay_window_s: Grace = 120.0
    """How long a finished reply is repeated to a marked retry.

    Raise it for agents that repeat a request later than two minutes after its reply.
    """
    stream_header_delay_s: Grace = 5.0
    """How long a stream's status line is held for the first token or an error; heartbeats follow.

    Lower it where a client or proxy gives up on a stream without a first byte.
    """
    stream_heartbeat_s: Annotated[Duration, ForTests()] = 10.0
    """Time between a silent stream's heartbeats."""
    probe_interval_s: Duration = 5.0
    """Time between two looks at the engines.

    Lower it to notice a changed weight version sooner, raise it where there are hundreds of engines.
    """


class LimitsSection(SettingsSection):
    """Limits: what one server process takes on."""

    session_ttl_s: Duration = 7200.0
    """A session without a request for this long expires.

    Raise it where an agent's tool may run for more than two hours, lower it where agents often vanish.
    """
    max_sessions: Count = 65536
    """Sessions at a time.

    Raise it for larger batches, as far as memory allows.
    """
    max_session_turns: Count = 10000
    """Turns of one session.

    Lower it to stop agents that loop, raise it for the longest of tasks.
    """
    max_memory_bytes: Bytes = ByteSize(8 << 30)
    """Sessions in memory; beyond it the rows of idle sessions move to disk, and then new sessions are refused.

    Set it to what the machine can spare for each worker.
    """
    spill_directory: str | None = None
    """Folder for rows that moved to disk. Unset: a temporary one.

    Set it to a fast local disk where the temporary folder is small or in memory.
    """
    max_body_bytes: Bytes = ByteSize(256 << 20)
    """Body of one request, whoever sends it.

    Raise it for trainers whose requests are refused with a 413.
    """
    max_turn_body_bytes: Bytes = ByteSize(64 << 20)
    """Body of what an agent sends: a turn, a count, a request that is passed through.

    Raise it, and the limit of all bodies where it is lower, for conversations whose requests are refused with a 413.
    """
    max_peer_connections: Count = 16384
    """Connections of one address at a time.

    Raise it where one proxy stands before more agents than this, lower it where agents are many and not trusted.
    """
    max_in_flight: Count = 8192
    """Requests at a time.

    Raise it where more agents than this ask at a time and the engines can take them.
    """


class TrainerSection(SettingsSection):
    """Trainer: for the trainer alone; `turnkeeper serve` checks those that a rule is about and refuses the others."""

    partial_rollout: bool = False
    """Recycle unfinished samples into the data buffer.

    Leave it off with a session server: the two do not go together.
    """
    mask_offpolicy_in_partial_rollout: bool = False
    """Mask what an earlier policy generated in recycled samples.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    fully_async: bool = False
    """Generate all the time, while the trainer trains.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    colocate: bool = False
    """Trainer and engines take turns on the same devices.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    group_rm: bool = False
    """Reward all samples of a group together.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    recompute_logprobs_via_prefill: bool = False
    """Compute the rollout's logprobs again by prefill.

    Give it here as well as to the trainer, so that a run that cannot work is refused at start.
    """
    custom_generate_function_path: str | None = None
    """Import path of the trainer's generate function.

    Set it in the trainer alone.
    """
    custom_agent_function_path: str | None = None
    """Import path of the agent that the trainer runs.

    Set it in the trainer alone.
    """
    max_weight_staleness: Annotated[int, Field(ge=0)] | None = None
    """Weight versions by which a sample may be older than the policy.

    Set it in the trainer alone.
    """


class Settings(BaseModel):
    """Every option's value, by section; checked one by one, not yet against each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    server: ServerSection = ServerSection()
    history: HistorySection = HistorySection()
    routing: RoutingSection = RoutingSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    limits: LimitsSection = LimitsSection()
    trainer: TrainerSection = TrainerSection()
