"""The values a turn is made of, from request to record.

::

    TurnRequest --begin--> PendingTurn --(renderer)--> Prompt --(engine)--> Completion --commit--> Turn

Nothing here mutates. A turn stores only what it adds to its parent: the messages, the prompt ids, the completion and
the items of side channels, such as its patch of routing rows. The pending turn stands in ``pending``, the reason why a
turn is no extension in ``cause``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels import CHANNELS, ItemRun, Items
from turnkeeper.core.agent import find_sub_agent
from turnkeeper.core.cause import Explanation
from turnkeeper.core.tokens import Span, TokenIds
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.matching import Difference, Rewrite

TopLogprobs: TypeAlias = tuple[tuple[tuple[int, float], ...], ...]
"""For each sampled token the likeliest tokens at its place: id and logprob, the likeliest first."""


class FinishReason(StrEnum):
    """The reason why a completion ended. An aborted generation is never recorded, so that abort is not among the
    reasons."""

    STOP = "stop"
    """A stop token or stop string was sampled."""
    LENGTH = "length"
    """The token budget ran out: the turn is truncated."""
    TOOL_CALLS = "tool_calls"
    """Stopped, and the message holds tool calls."""
    CONTENT_FILTER = "content_filter"
    """The engine withheld text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """The run of completion tokens, start..stop, that were sampled under one weight version."""

    version: str | None
    """The engine's label; None where nobody knows, which is never replaced by a guess."""
    start: int
    """First completion position, from 0."""
    stop: int
    """One past the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryMarks:
    """The marks by which a client says that a request is a retry."""

    retry_count: int = 0
    """The number of times that the client sent the request before."""
    key: str = ""
    """The idempotency key of the request; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """The request of an agent, in the canonical form to which every dialect translates."""

    messages: tuple[Message, ...]
    """The whole conversation, chat-completions form, not empty."""
    model: str = ""
    """The model that the agent asked for, which says nothing of what answers; empty where it named none."""
    tools: tuple[JsonObject, ...] = ()
    """Function tools in chat-completions form, as rendered into the prompt."""
    loaded_tools: tuple[JsonObject, ...] = ()
    """Function tools that the messages load: their definitions stand in tool results, not with ``tools``, so that a
    growing set of them leaves the path as it is."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The request's own chat template arguments, before the family's are merged in."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The effective sampler under chat-completions names, pins applied (``max_tokens``, ``temperature``, ...)."""
    forwarded: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The other fields that the engine is sent: those about calls and reports, and those that the operator forwards."""
    dropped_fields: tuple[str, ...] = ()
    """Body fields that were left out, since they stand on no list."""
    digest: str = ""
    """A digest of what makes two requests equal: agent, messages, tools, template arguments and sampling."""
    dialect: str = "chat"
    """chat, messages or responses."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The harness headers that name a conversation (lower-case names): for labels, never for attaching."""
    notes: tuple[str, ...] = ()
    """The parts of the body that the dialect left out or changed, for the record."""
    retry: RetryMarks = field(default_factory=RetryMarks)
    """True when the client says that it sent the request before."""
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tracing headers (lower-case names) that go along to the engine; not kept with the turn."""
    wants_text: bool = False
    """True when the client wants the text while it is generated."""

    @property
    def callable_tools(self) -> tuple[JsonObject, ...]:
        """Every tool that the policy may call, for engines and parsers."""
        return (*self.tools, *self.loaded_tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The prompt of a turn: the path of its parent without the last ``trim`` ids, followed by ``ids``."""

    trim: int
    """The number of trailing ids of the parent's path that the prompt leaves out: 0 or 1; 0 for a root."""
    ids: TokenIds
    """Shape [P]: the appended prompt ids (all prompt ids for a root), generation prompt included."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The effective chat template arguments, the family's pinned ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The generation of an engine after all checks. ``ids`` and ``logprobs`` are parallel."""

    ids: TokenIds
    """Shape [C]: the sampled ids, stop token included."""
    logprobs: NDArray[np.float64]
    """Shape [C], natural log, finite."""
    message: Message
    """The assistant message as delivered, under the call ids that the agent sees; its spelling is what later requests
    are matched against."""
    finish_reason: FinishReason
    versions: tuple[VersionSpan, ...]
    """Covers 0..C in order, without gaps."""
    weight_version: str | None = None
    """``meta_info.weight_version``: the engine's version at the end of the request; None when it sent none."""
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens at each place, where the agent asked for them: a report, which no sample holds."""
    lora_name: str | None = None
    """The adapter that it was sampled with, of which the versions are versions; None for the base weights."""
    channels: Mapping[str, Items] = field(default_factory=dict[str, Items])
    """What the turn keeps of side channels, by the channel's name: only those that were asked for. Each says what it
    holds; see `turnkeeper.channels`."""
    matched_stop: int | str | None = None
    """The stop token id or string that ended it; None otherwise."""
    cached_tokens: int = 0
    """The number of prompt tokens that the engine took from its prefix cache."""
    sampled_ids: Mapping[str, str] = field(default_factory=dict[str, str])
    """Shown to sampled call id, of each call whose own id was in use: prompts and engines know it by that id."""
    response_id: str = ""
    """The id under which the reply was delivered."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The engine's ``meta_info`` less the lists and payloads that stand above."""
    marks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Remarks on the turn (``rows_recomputed``, ``bad_rows_from``, ``rows_changed``, ``pieces``, ...), JSON-ready."""
    started_at: float = 0.0
    """Unix seconds when the engine call began."""
    finished_at: float = 0.0
    """Unix seconds when the engine's reply was complete."""

    def __post_init__(self) -> None:
        """Check that parallel lists are equally long, that logprobs are finite, and that versions cover every token."""
        if len(self.logprobs) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} logprobs")
        if not np.isfinite(self.logprobs).all():
            raise ValueError("a sampled token has a logprob that is not finite")
        position = 0
        for span in self.versions:
            if span.start != position or span.stop < span.start:
                raise ValueError(f"version spans leave a gap at completion position {position}")
            position = span.stop
        if position != len(self.ids):
            raise ValueError(f"version spans cover {position} of {len(self.ids)} tokens")

    @property
    def channel_runs(self) -> tuple[ItemRun, ...]:
        """The runs of items of all side channels, in the order in which a store has them."""
        return tuple(run for name in CHANNELS if name in self.channels for run in self.channels[name].runs)

    @property
    def is_truncated(self) -> bool:
        """True when a token budget ended the completion."""
        return self.finish_reason is FinishReason.LENGTH


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One committed generation. It stores only what it adds to its parent."""

    id: TurnId
    """The turn's place in the commit order of the session, from 0."""
    parent: TurnId | None
    """The turn it extends; None for a root."""
    messages: tuple[Message, ...]
    """The messages appended since the parent's path; call ids as the agent was shown them."""
    request: TurnRequest
    """The request less its messages, which stand in ``messages`` and on the parent's path."""
    prompt: Prompt
    completion: Completion
    begun_after: int
    """The number of turns that were committed when this one began; with ``id`` it gives the order in time."""
    begun_at: float
    """Unix seconds; for people, never for order."""
    committed_at: float
    """Unix seconds; for people, never for order."""
    path_tokens: int
    """The length of its path ids, completion included."""
    path_messages: int
    """The number of messages on its path, its completion's included."""
    context_digest: str
    """Tools and template arguments that its root was rendered with."""
    context_changed: bool = False
    """True when the request came with other tools or template arguments than the root."""
    carried: int = 0
    """The number of assistant messages in ``messages``, which the client brought along and which are never trained."""
    accepted: tuple[Difference, ...] = ()
    """Differences in the replay of the parent's own messages that the matcher accepted; the stored spelling stays."""
    rewrite: Rewrite | None = None
    """What its request made of the parent's reply, where it is that reply by its call ids alone; later requests may
    bring the reply in this form. None where the reply came in its stored form."""
    why: Explanation
    """Why it is a root or a branch, where it is one."""

    @property
    def agent(self) -> str | None:
        """The sub-agent that a harness header names; None for the main agent."""
        return find_sub_agent(self.request.headers)

    @property
    def completion_span(self) -> Span:
        """The positions of the turn's completion in the ids of its path."""
        return Span(start=self.path_tokens - len(self.completion.ids), stop=self.path_tokens)

    def overlaps(self, other: "Turn") -> bool:
        """Return True when two turns were in flight at one time: the later one began before the other was committed."""
        first, second = (self, other) if self.id < other.id else (other, self)
        return second.begun_after <= first.id
