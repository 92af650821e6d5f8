"""The engine protocol: what generates a turn, whichever server does it.

Owns the request and reply values that every adapter translates to and from. Knows no wire and no HTTP: an adapter
(SGLang, vLLM, a pool of several) implements `Engine`, and callers do not know which one they have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels import CHANNELS, Asked
from turnkeeper.choices import EngineWire
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import TopLogprobs, VersionSpan
from turnkeeper.engines.prompt_text import PromptText
from turnkeeper.fields import Wire
from turnkeeper.jsontypes import JsonObject, Message, encode_json

IdsSink: TypeAlias = Callable[[TokenIds], None]
"""Called with each run of newly sampled ids while a reply is being generated, in order."""

TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""The fields that limit the number of sampled tokens."""

LARGE_ROWS = 4096
"""The number of rows from which a reply counts as large: 8 MB for a model of 48 layers and top-8."""

ABORT = "abort"
"""The finish reason of a reply that the engine cut short."""


class EngineState(StrEnum):
    """The state of an engine, by which a turn runs, waits or fails."""

    SERVING = "serving"
    PAUSED = "paused"
    """The engine is up, and holds requests back until its trainer continues it."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """A request to generate one turn, or one part of it."""

    rid: str
    """The id of this attempt in the engine, unique, so that it can be aborted alone."""
    session_id: str
    """The routing key: calls of one session go to the same engine while it is up."""
    prompt_ids: TokenIds
    """Shape [P]: the whole prompt, exactly as it must be prefilled."""
    messages: tuple[Message, ...] = ()
    """The conversation, which chat wires need beside the ids; engines never render it."""
    tools: tuple[JsonObject, ...] = ()
    """Function tools in chat-completions form."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling parameters under chat-completions names."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The chat template's keyword arguments in effect; parsers in the engine read some of them."""
    forwarded: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields about tool calls and reports, and unknown fields that the operator forwards."""
    lora_name: str | None = None
    """The adapter to sample with; None for the base weights."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the reply beside the model's own, added to those of ``sampling``."""
    asked: Mapping[str, Asked] = field(default_factory=dict[str, Asked])
    """What the call asks for on each side channel, by the channel's name; channels without an entry send no field."""
    cache_salt: str | None = None
    """Keeps the prefix cache of one weight version apart from another's; None sends none."""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tracing headers of the client (lower-case names) to pass on; other client headers never reach an engine."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the operator's request hook (lower-case names), which win over those above."""
    prompt_text: PromptText = field(default_factory=PromptText)
    """Holds the JSON of the session's last prompt, of which this one repeats most."""

    def __post_init__(self) -> None:
        """Refuse an empty prompt, and payloads that start outside of it."""
        if not len(self.prompt_ids):
            raise ValueError("a prompt has at least one token")
        for name, asked in self.asked.items():
            if not 0 <= asked.payload_start <= len(self.prompt_ids):
                raise ValueError(
                    f"{name} cannot start at {asked.payload_start} in a prompt of {len(self.prompt_ids)} tokens"
                )

    @property
    def expects_payloads(self) -> bool:
        """True if items of a side channel are asked for."""
        return bool(self.asked)

    @property
    def expects_large_reply(self) -> bool:
        """True if the reply will bring many megabytes of items."""
        start = min((asked.payload_start for asked in self.asked.values()), default=len(self.prompt_ids))
        return len(self.prompt_ids) - start >= LARGE_ROWS

    @property
    def needs_prompt_count(self) -> bool:
        """True if a side channel needs the engine's own count of the prompt."""
        return any(CHANNELS[name].needs_prompt_count for name in self.asked)

    @property
    def list_keys(self) -> tuple[str, ...]:
        """The members of the reply that hold lists of ids of side channels."""
        return tuple(key for name in self.asked for key in CHANNELS[name].list_keys)

    def render_asked(self, wire: Wire) -> JsonObject:
        """Render the fields that ask for side channels; empty where none is asked for."""
        fields: JsonObject = {}
        for name, asked in self.asked.items():
            fields |= CHANNELS[name].render(wire, asked)
        return fields

    def tell_asked(self) -> JsonObject:
        """Return what the log says of the side channels that are asked for."""
        return {key: value for name, asked in self.asked.items() for key, value in CHANNELS[name].tell(asked).items()}

    def is_lost_in_streams(self, route: str) -> bool:
        """Return True if streams of a route lose the payload of a side channel that is asked for."""
        return any(CHANNELS[name].is_lost(route, asked) for name, asked in self.asked.items())

    @property
    def token_budget(self) -> int | None:
        """The number of tokens that may be sampled; None without a limit."""
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

    def render_body(self, ids_name: str, fields: JsonObject, *, has_messages: bool = False) -> bytes:
        """Render the JSON body of a call.

        Args:
            ids_name: the member that holds the prompt ids.
            fields: the other members, at least one.
            has_messages: True where the conversation is a member, ``messages``, too.
        """
        pieces = [b'{"', ids_name.encode(), b'":[', *self.prompt_text.write_ids(self.prompt_ids)]
        if has_messages:
            messages = self.messages or ({"role": "user", "content": ""},)
            pieces += [b'],"messages":[', *self.prompt_text.write_messages(messages)]
        return b"".join((*pieces, b"],", encode_json(fields)[1:]))


ParseMessage: TypeAlias = Callable[[GenerateRequest, TokenIds], Message]
"""Parses a completion's ids into a canonical message; its tool calls are named by the request's ``rid``."""

DecodeIds: TypeAlias = Callable[[TokenIds], str]
"""Decodes ids into text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """An engine's reply, translated from its wire and not yet checked."""

    message: Message
    """The assistant message in canonical form; ``content`` is a string."""
    ids: TokenIds
    """Shape [C]: the sampled ids, stop token included when the engine sends it."""
    logprobs: NDArray[np.float64]
    """Shape [C'], natural log; NaN where the engine sent null or NaN."""
    finish_reason: str
    """The finish reason as the engine names it: stop, length, tool_calls, content_filter, abort, ..."""
    matched_stop: int | str | None = None
    """The stop token id or stop string that ended the reply."""
    prompt_tokens: int | None = None
    """The number of prompt tokens that the engine counted; None when the reply has no count."""
    completion_tokens: int | None = None
    """The number of sampled tokens that the engine counted; None when the reply has no count."""
    cached_tokens: int = 0
    """The number of prompt tokens that came from the engine's prefix cache."""
    is_cache_counted: bool = True
    """True if the engine counts cached tokens; vLLM does so only with ``--enable-prompt-tokens-details``."""
    weight_version: str | None = None
    """The engine's version label at the end of the request."""
    spans: tuple[VersionSpan, ...] | None = None
    """The engine's own version spans over completion positions; None when it sends none."""
    num_retractions: int = 0
    """The number of times that the request lost its KV cache and was prefilled again."""
    payloads: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The payloads of side channels by the channel's name, as `Channel.read` found them: of those that were asked
    for."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The engine's ``meta_info`` without its lists and payloads."""
    response_id: str = ""
    """The engine's id of the reply."""
    model: str = ""
    """The model name the engine states."""
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens at each position; None where they were not asked for."""
    dropped_fields: tuple[str, ...] = ()
    """The request's fields that the engine's wire does not have."""
    url: str = ""
    """The address of the engine that answered."""

    @property
    def is_aborted(self) -> bool:
        """True if the engine ended the reply before its own end."""
        return self.finish_reason == ABORT


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The status of one engine or router, as it reports it."""

    url: str
    state: EngineState
    kind: str = ""
    """sglang or vllm; empty when unknown."""
    model: str = ""
    weight_version: str | None = None
    context_length: int | None = None
    """The longest prompt and reply together, in tokens, as the engine states it."""
    can_abort: bool = True
    """True if a running call can be aborted; False for a router that lists no workers."""
    workers: tuple[str, ...] = ()
    """The URLs that a router lists; empty for an engine."""
    is_disaggregated: bool = False
    """True if one server prefills a prompt and another decodes it (prefill/decode disaggregation)."""
    wire: EngineWire | None = None
    """The route on which turns are generated, where the server has several."""
    error: str = ""
    """The reason why the engine is unreachable; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRequest:
    """A call that is passed through to an engine unread."""

    method: str
    path: str
    """Starts with a slash."""
    query: str = ""
    """The query string, without the question mark."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayReply:
    """The engine's answer to a relayed call, without the headers that only concern its own connection."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Engine(Protocol):
    """Generates turns. Failures of libraries are raised as `turnkeeper.errors.EngineError` and its children."""

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate one reply.

        Args:
            request: the prompt and how to sample.
            on_ids: called with sampled ids as they come; never called by an engine that cannot stream ids.

        Raises:
            EngineError: there was no connection, or the reply broke off.
            EngineProtocolError: the reply does not have the form of this wire.
            EngineRefusedError: the engine answered 400 or 429.
            EngineTimeoutError: the engine did not answer in time.
        """
        ...

    async def relay(self, call: RelayRequest) -> RelayReply:
        """Pass a call through to the engine of its session, unread.

        Raises:
            EngineError: there was no connection, or the reply broke off.
        """
        ...

    async def abort(self, rid: str) -> None:
        """Ask the engine to abort one attempt. Failures are not raised: an abort is best effort."""
        ...

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        """Ask each engine behind this one for its status; one that is not there has a status too."""
        ...

    async def close(self) -> None:
        """Release the connections that the engine holds for itself."""
        ...
