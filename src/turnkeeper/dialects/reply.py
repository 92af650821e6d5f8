"""The reply to an agent, before a dialect renders it. Knows no dialect and no HTTP."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import Completion, TopLogprobs
from turnkeeper.jsontypes import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """One assistant message, and the facts that clients are told about it."""

    response_id: str
    """The id under which the reply is delivered, at its first delivery and at every replay."""
    created_s: int
    """Unix seconds when the engine's reply was complete."""
    message: Message
    """``role``, ``content`` (a string), ``reasoning_content`` and ``tool_calls`` where there are any."""
    finish_reason: str
    """stop, length, tool_calls or content_filter."""
    prompt_tokens: int
    """Length of the whole prompt, the parent's path included."""
    completion_tokens: int
    """How many tokens were sampled, stop token included."""
    cached_tokens: int = 0
    """How many prompt tokens the engine took from its prefix cache."""
    matched_stop: int | str | None = None
    """The stop token id or string that ended it."""
    weight_version: str | None = None
    """The engine's weight version at the end of the call; None when it sent none."""
    ids: TokenIds
    """Shape [C]: the sampled ids."""
    logprobs: NDArray[np.float64]
    """Shape [C], parallel to ``ids``."""
    top_logprobs: TopLogprobs | None = None
    """The likeliest tokens at each place, parallel to ``ids``; None where the engine was not asked for them."""
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The engine's ``meta_info`` less lists and payloads."""


def build_reply(completion: Completion, prompt_tokens: int) -> AgentReply:
    """Build the reply that delivers a completion; its first delivery and every replay are built alike."""
    return AgentReply(
        response_id=completion.response_id,
        created_s=int(completion.finished_at),
        message=completion.message,
        finish_reason=str(completion.finish_reason),
        prompt_tokens=prompt_tokens,
        completion_tokens=len(completion.ids),
        cached_tokens=completion.cached_tokens,
        matched_stop=completion.matched_stop,
        weight_version=completion.weight_version,
        ids=completion.ids,
        logprobs=completion.logprobs,
        top_logprobs=completion.top_logprobs,
        meta=completion.meta,
    )
