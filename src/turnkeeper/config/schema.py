"""The options, each declared once: a field, its type, its default and the text beneath it.

`turnkeeper.config.option` makes flag, environment variable, TOML key and a row of the docs out of a field. A name
that ends in ``_s`` is a duration in seconds, and the flag goes without the ending. Knows no other option while it
checks one (`turnkeeper.config.rules` does) and derives nothing (`turnkeeper.config.resolve`).
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


class Section(BaseModel):
    """A group of options: a panel of ``--help``, a heading of the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


class Model(Section):
    """Model: whose conversations are kept, and how they become tokens."""

    hf_checkpoint: str | None = None
    """Folder with the checkpoint's tokenizer, config.json and chat template."""
    tito_model: str = "default"
    """Family of the model's chat format; `default` renders with the checkpoint's own template as well as it can."""
    chat_template_path: str | None = None
    """Jinja file in place of the checkpoint's template; for the family `default` only."""
    apply_chat_template_kwargs: Annotated[JsonObject, BeforeValidator(_parse_object)] = Field(
        default_factory=dict[str, Any]
    )
    """Template arguments of every conversation, as a JSON object."""
    render_tools: RenderTools = RenderTools.AS_SENT
    """Form in which tools are rendered; a policy must be trained, evaluated and served with one and the same."""
    tokenizer_backend: TokenizerBackend = TokenizerBackend.AUTO
    """Library that makes ids of text; decoding is always that of `tokenizers`."""
    max_seq_len: Count | None = None
    """Token limit of a session that names none; samples are cut to it. Unset: the checkpoint's context length."""
    num_layers: Count | None = None
    """Layers of the model, where its config.json does not say."""
    moe_router_topk: Count | None = None
    """Experts each token is routed to, where config.json does not say."""
    num_experts: Count | None = None
    """Experts of a layer, where config.json does not say."""


class Engine(Section):
    """Engine: what generates, and what weight updates do to it."""

    backend_url: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Address of an engine or a router; repeat it for several, and sessions spread over them."""
    engine_api_key: Annotated[str | None, Field(repr=False)] = None
    """Key that is sent to engines and routers as a bearer token."""
    engine_api_key_file: str | None = None
    """File that holds the key for the engines."""
    engine: EngineKind = EngineKind.AUTO
    """Whose wire the engine speaks; `auto` asks it."""
    engine_wire: EngineWire = EngineWire.CHAT
    """Route that generates. Unset: `chat`, and `generate` where prefill and decode run on separate servers."""
    strict_probe: bool = False
    """Fail at start if an engine does not answer or cannot do what is asked of it; else /health says so."""
    pause_generation_mode: PauseMode = PauseMode.RETRACT
    """How the trainer pauses the engines for a weight update."""
    on_abort: OnAbort = OnAbort.RESTART
    """What happens to a turn that a weight update aborted."""
    abort_attempts: Count = 8
    """How often one turn is continued after such aborts before it fails."""
    lora_name: Annotated[str, Field(min_length=1)] | None = None
    """Adapter that every turn is sampled with, under the name that the engines know it by. Unset: the base weights."""
    forward_field: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Request field on no list that reaches the engines as it comes; repeat it for several. Others are left out."""
    cache_salt_by_version: bool = False
    """Send a `cache_salt` made of session and weight version, so that no prefix computed by older weights is reused."""


class Server(Section):
    """Server: where it listens, and whom it serves."""

    use_session_server: Annotated[str | None, BeforeValidator(_parse_version)] = None
    """Session server version: `v1` keeps one line of turns, `v2` a tree. Alone it means v1, and `serve` starts v1."""
    session_server_ip: str = "127.0.0.1"
    """Address to listen on."""
    session_server_port: Annotated[tuple[Annotated[int, Field(ge=0, le=65535)], ...], BeforeValidator(_split)] = (
        30100,
    )
    """First port to listen on; 0 takes a free one and prints it."""
    session_server_workers: int = 1
    """Independent processes, on consecutive ports from the first."""
    session_server_instance_id: str | None = None
    """Name of this instance in /health. Unset: a random one."""
    api_key: Annotated[tuple[str, ...], BeforeValidator(_split), Field(repr=False)] = ()
    """Key that agents must send; repeat it for several. Unset: keys on session paths are ignored."""
    api_key_file: str | None = None
    """File with such keys, one on a line."""
    auto_create_sessions: bool = False
    """Create the session that a request names, if there is none."""
    allow_unrecorded: bool = False
    """Pass on requests to engine routes that generate tokens outside of any turn."""
    pass_through: Annotated[tuple[str, ...], BeforeValidator(_split_lines)] = ()
    """Method and path of an engine route that agents may call, such as `GET server_info`; repeat it for several."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages that are logged."""


class History(Section):
    """History: what a replayed conversation continues, and what it becomes."""

    session_message_matcher: str = "tolerant"
    """When a replayed message is the stored one: strict, loose_tool_call, tolerant, role_content_only or a path."""
    on_rewritten_calls: OnRewrittenCalls = OnRewrittenCalls.FIRST
    """A stored reply that comes back under its own call ids with other arguments, under the matcher tolerant."""
    session_max_rollback: Annotated[int, Field(ge=0)] = 1
    """Turns that a request may step back behind under v1; more is refused."""
    on_tools_change: OnToolsChange | None = None
    """A request that continues a path with other tools. Unset: `keep` under v1, `fork` under v2."""
    on_truncated: OnTruncated | None = None
    """A request that extends a turn which ended by length; a session's own wins. Unset: v1 `bridge`, v2 `close`."""
    on_image: OnImage = OnImage.REFUSE
    """An image that an agent sends, be it a tool's result or the user's; a session holds text only."""
    sample_past_truncation: bool = False
    """Let samples go on behind a truncated turn, flagged; otherwise they end there."""
    train_models: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Models that are trained, as agents name them; turns of other models carry no loss. Unset: all."""
    session_sample_picker_path: str = "drop_retries"
    """Which leaves become samples under v2: drop_retries, keep_siblings, another built-in name or an import path."""
    session_sample_postprocessor_path: str = "default_postprocess"
    """What happens to picked samples under v2: default_postprocess, another built-in name or an import path."""
    save_debug_trajectory_data: Annotated[bool, BeforeValidator(_is_given)] = False
    """Put each sample's messages into its metadata."""


class Routing(Section):
    """Routing replay: the experts that each token was routed to."""

    use_rollout_routing_replay: bool = False
    """Ask the engine for routed experts, and put them into samples."""
    use_rollout_indexer_replay: bool = False
    """Ask the engine for the sparse-attention indexer's choices, and put them into samples."""
    r3_rows: RowsKept = RowsKept.DECODE
    """Rows kept where a later payload differs: `decode`, those that sampled the token, or `latest`."""
    r3_recomputed: OnRecomputed = OnRecomputed.KEEP
    """A turn whose rows the engine computed again after a retraction."""
    on_bad_rows: OnBadRows = OnBadRows.FAIL
    """A reply whose rows cannot be true."""


class Timeouts(Section):
    """Timeouts: each is longer than those that it contains."""

    engine_timeout_s: Duration = 1800.0
    """One engine call."""
    request_timeout_s: Duration = 3600.0
    """One request of an agent, with its waits and engine calls."""
    drain_timeout_s: Duration = 3900.0
    """Requests in flight when the server stops."""
    gate_timeout_s: Duration = 600.0
    """A new turn's wait while the engines are paused."""
    abort_grace_s: Grace = 2.0
    """How long after an abort the pause may become known for the abort to belong to that weight update."""
    reconnect_grace_s: Grace = 1.0
    """How long the engine call of a client that hung up is kept for its retry."""
    replay_window_s: Grace = 120.0
    """How long a finished reply is repeated to a marked retry."""
    stream_header_delay_s: Grace = 5.0
    """How long a stream's status line is held for the first token or an error; heartbeats follow."""
    stream_heartbeat_s: Duration = 10.0
    """Time between a silent stream's heartbeats."""
    keep_alive_timeout_s: Duration = 900.0
    """How long an idle connection of an agent stays open."""
    probe_interval_s: Duration = 5.0
    """Time between two looks at the engines."""


class Limits(Section):
    """Limits: what one server process takes on."""

    session_ttl_s: Duration = 7200.0
    """A session without a request for this long expires."""
    tombstone_ttl_s: Grace = 600.0
    """How long requests are told that their session expired, rather than that there is none."""
    max_sessions: Count = 65536
    """Sessions at a time."""
    max_session_turns: Count = 10000
    """Turns of one session."""
    max_memory_bytes: Bytes = ByteSize(8 << 30)
    """Sessions in memory; beyond it the rows of idle sessions move to disk, and then new sessions are refused."""
    spill_directory: str | None = None
    """Folder for rows that moved to disk. Unset: a temporary one."""
    max_body_bytes: Bytes = ByteSize(256 << 20)
    """Body of one request."""
    max_in_flight: Count = 8192
    """Requests at a time."""


class Trainer(Section):
    """Trainer: for the trainer alone; `turnkeeper serve` checks those that a rule is about and refuses the others."""

    partial_rollout: bool = False
    """Recycle unfinished samples into the data buffer."""
    mask_offpolicy_in_partial_rollout: bool = False
    """Mask what an earlier policy generated in recycled samples."""
    fully_async: bool = False
    """Generate all the time, while the trainer trains."""
    colocate: bool = False
    """Trainer and engines take turns on the same devices."""
    group_rm: bool = False
    """Reward all samples of a group together."""
    recompute_logprobs_via_prefill: bool = False
    """Compute the rollout's logprobs again by prefill."""
    custom_generate_function_path: str | None = None
    """Import path of the trainer's generate function."""
    custom_agent_function_path: str | None = None
    """Import path of the agent that the trainer runs."""
    max_weight_staleness: Annotated[int, Field(ge=0)] | None = None
    """Weight versions by which a sample may be older than the policy."""


class Settings(BaseModel):
    """Every option's value, by section; checked one by one, not yet against each other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Model = Model()
    engine: Engine = Engine()
    server: Server = Server()
    history: History = History()
    routing: Routing = Routing()
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    trainer: Trainer = Trainer()
