"""The seam between sessions and whatever generates tokens.

Owns the request and reply values that every engine adapter translates to and from. Knows no wire and no HTTP: an
adapter (SGLang, vLLM, a pool of several) implements `Engine`, and nothing above asks which one it talks to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from turnkeeper.choices import EngineWire
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import TopLogprobs, VersionSpan
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.routing import Payload, RowsRequest

IdsSink: TypeAlias = Callable[[TokenIds], None]
"""Called with each run of newly sampled ids while a reply is being generated, in order."""

TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""The fields that limit how many tokens are sampled."""

LARGE_ROWS = 4096
"""From so many rows on a reply is large: 8 MB for a model of 48 layers and top-8."""

ABORT = "abort"
"""The finish reason of a reply that the engine cut short."""


class EngineState(StrEnum):
    """What an engine can do for a turn right now."""

    SERVING = "serving"
    PAUSED = "paused"
    """It is up, and holds requests back until its trainer lets it go on."""
    UNREACHABLE = "unreachable"


def encode_ids(ids: TokenIds) -> bytes:
    """The ids as a JSON array."""
    return orjson.dumps(ids, option=orjson.OPT_SERIALIZE_NUMPY)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """One turn to generate."""

    rid: str
    """Names this attempt in the engine, so that it can be aborted alone. Unique per attempt."""
    session_id: str
    """The routing key: calls of one session go to the same engine while it is up."""
    prompt_ids: TokenIds
    """Shape [P]: the whole prompt, exactly as it must be prefilled."""
    messages: tuple[Message, ...] = ()
    """The conversation, which chat wires want beside the ids; they never render it."""
    tools: tuple[JsonObject, ...] = ()
    """Function tools in chat-completions form."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters under chat-completions names."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The effective chat template arguments; engine-side parsers read some of them."""
    forwarded: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields about calls and reports, and those on no list that the operator forwards; what turnkeeper decides wins."""
    lora_name: str | None = None
    """The adapter to sample with; None for the base weights."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the reply beside the model's own, added to those of ``sampling``."""
    rows: RowsRequest | None = None
    """Which routing rows are asked for; None sends no routing field at all."""
    wants_indexer: bool = False
    """Whether the indexer's top-k is asked for."""
    cache_salt: str | None = None
    """Keeps the prefix cache of one weight version apart from another's; None sends none."""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tracing headers of the client (lower-case names) to pass on; other client headers never reach an engine."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the operator's request hook (lower-case names), which win over those above."""

    def __post_init__(self) -> None:
        """A prompt has tokens, and a start of rows lies inside it."""
        if not len(self.prompt_ids):
            raise ValueError("a prompt has at least one token")
        start = self.rows.payload_start if self.rows is not None else 0
        if not 0 <= start <= len(self.prompt_ids):
            raise ValueError(f"routing rows cannot start at {start} in a prompt of {len(self.prompt_ids)} tokens")

    @property
    def expects_payloads(self) -> bool:
        """Whether routing or indexer rows are asked for."""
        return self.rows is not None or self.wants_indexer

    @property
    def expects_large_reply(self) -> bool:
        """Whether the reply will bring many megabytes of rows."""
        start = len(self.prompt_ids) if self.rows is None else self.rows.payload_start
        return len(self.prompt_ids) - (0 if self.wants_indexer else start) >= LARGE_ROWS

    @property
    def token_budget(self) -> int | None:
        """How many tokens may be sampled; None without a limit."""
        requested: Mapping[str, Any] = {**self.forwarded, **self.sampling}
        limits = [requested[name] for name in TOKEN_LIMITS if isinstance(requested.get(name), int)]
        return min(limits) if limits else None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, without empty ones."""
        requested: object = {**self.forwarded, **self.sampling}.get("stop")
        if isinstance(requested, str):
            return (requested,) if requested else ()
        listed = cast(list[object], requested) if isinstance(requested, list) else []
        return tuple(item for item in listed if isinstance(item, str) and item)

    def encode_prompt(self) -> bytes:
        """The prompt ids as a JSON array. Nobody keeps it: 32,000 ids are written in 0.1 ms."""
        return encode_ids(self.prompt_ids)


ParseMessage: TypeAlias = Callable[[GenerateRequest, TokenIds], Message]
"""Reads a completion's ids into a canonical message; the request's ``rid`` names its tool calls."""

DecodeIds: TypeAlias = Callable[[TokenIds], str]
"""Spells ids as text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """What an engine answered, translated and not yet checked."""

    message: Message
    """The assistant message in canonical form; ``content`` is a string."""
    ids: TokenIds
    """Shape [C]: the sampled ids, stop token included when the engine sends it."""
    logprobs: NDArray[np.float64]
    """Shape [C'], natural log; NaN where the engine sent null or NaN."""
    finish_reason: str
    """The engine's word: stop, length, tool_calls, content_filter, abort, ..."""
    matched_stop: int | str | None = None
    """The stop token id or string that ended it."""
    prompt_tokens: int | None = None
    """How many prompt tokens the engine counted; None when it says so nowhere."""
    completion_tokens: int | None = None
    """How many sampled tokens the engine counted; None when it does not say."""
    cached_tokens: int = 0
    """How many prompt tokens came from the engine's prefix cache."""
    is_cache_counted: bool = True
    """Whether the engine says so; a vLLM does only when it is told to."""
    weight_version: str | None = None
    """The engine's version label at the end of the request."""
    spans: tuple[VersionSpan, ...] | None = None
    """The engine's own version spans over completion positions; None when it sends none."""
    num_retractions: int = 0
    """How often the request lost its KV and was prefilled again."""
    routed_experts: Payload | None = None
    """The routing payload of the reply; None when absent."""
    indexer_topk: Payload | None = None
    """The indexer's payload; None when absent."""
    indexer_layers: int | None = None
    """The layer count of the indexer payload, as the engine states it."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The engine's ``meta_info`` less lists and payloads."""
    response_id: str = ""
    """The engine's id of the reply."""
    model: str = ""
    """The model name the engine states."""
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens at each place; None where they were not asked for."""
    dropped_fields: tuple[str, ...] = ()
    """The request's fields that the engine's wire does not have."""
    url: str = ""
    """Where it came from."""

    @property
    def is_aborted(self) -> bool:
        """Whether the engine cut it short."""
        return self.finish_reason == ABORT


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """What a probe found."""

    url: str
    state: EngineState
    kind: str = ""
    """sglang or vllm; empty when unknown."""
    model: str = ""
    weight_version: str | None = None
    context_length: int | None = None
    """The longest prompt plus reply, in tokens, as the engine states it."""
    can_abort: bool = True
    """Whether an abandoned call can be ended: false for a router that names no workers."""
    workers: tuple[str, ...] = ()
    """The URLs that a router lists; empty for an engine."""
    is_disaggregated: bool = False
    """Whether prompts are prefilled by one server and continued by another (prefill/decode disaggregation)."""
    wire: EngineWire | None = None
    """The route that turns take, where the wire has a choice."""
    error: str = ""
    """Why it is unreachable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRequest:
    """A call that turnkeeper passes through without reading it."""

    method: str
    path: str
    """Starts with a slash."""
    query: str = ""
    """Without the question mark."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayReply:
    """The engine's answer to a relayed call; ``headers`` are already freed of what must not be copied."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Engine(Protocol):
    """Generates turns. Every method maps foreign failures to `turnkeeper.errors.EngineError` and its children."""

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate one reply.

        Args:
            request: what to generate.
            on_ids: gets the sampled ids as they come, where the engine can stream ids; else it is never called.

        Raises:
            EngineError: no connection, a reset or a broken reply.
            EngineProtocolError: the reply is not one of this wire.
            EngineRefusedError: the engine's own 400 or 429.
            EngineTimeoutError: no answer in time.
        """
        ...

    async def relay(self, call: RelayRequest) -> RelayReply:
        """Pass a call through.

        Raises:
            EngineError: no connection or a broken reply.
        """
        ...

    async def abort(self, rid: str) -> None:
        """Ask every engine that can be reached to give up one attempt. Never raises: it is best effort."""
        ...

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        """Look at each engine behind this one. Never raises: an engine that is not there is a report."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
