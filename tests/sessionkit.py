"""Short spellings for tests about sessions: messages, requests, completions with ids that nobody has to choose."""

from itertools import count
from typing import Any

import numpy as np

from channelkit import take_channels
from turnkeeper.core import (
    Completion,
    FinishReason,
    HistoryPolicy,
    PendingTurn,
    Prompt,
    Session,
    Tree,
    Turn,
    TurnRequest,
    VersionSpan,
)
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.jsontypes import Message
from turnkeeper.matching import TOLERANT, Matcher

_ids = count(1)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def assistant(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


def tool(text: str, call_id: str = "c0") -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def call(name: str, arguments: str, call_id: str = "c0") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def ask(*messages: Message, **fields: Any) -> TurnRequest:
    return TurnRequest(messages=messages, **fields)


def prompt_of(size: int = 2, *, trim: int = 0) -> Prompt:
    """Prompt ids that are new each time."""
    return Prompt(trim=trim, ids=freeze_ids([next(_ids) for _ in range(size)]))


def completion_of(
    message: Message, size: int = 3, *, finish: FinishReason = FinishReason.STOP, **fields: Any
) -> Completion:
    """A completion whose ids are new each time."""
    return Completion(
        ids=freeze_ids([next(_ids) for _ in range(size)]),
        logprobs=np.full(size, -0.5),
        message=message,
        finish_reason=finish,
        versions=(VersionSpan(version="v1", start=0, stop=size),),
        **take_channels(fields),
    )


class Talk:
    """A session that is driven in sentences."""

    def __init__(
        self, policy: HistoryPolicy | None = None, *, matcher: Matcher = TOLERANT, turn_limit: int | None = None
    ) -> None:
        self.session = Session.open(policy or Tree(), matcher=matcher, turn_limit=turn_limit)
        self._clock = count(1)

    def begin(self, *messages: Message, **fields: Any) -> PendingTurn:
        return self.session.begin(ask(*messages, **fields), at=float(next(self._clock)))

    def commit(
        self, pending: PendingTurn, reply: str | Message, *, finish: FinishReason = FinishReason.STOP, trim: int = 0
    ) -> Turn:
        message = assistant(reply) if isinstance(reply, str) else reply
        return self.session.commit(
            pending,
            prompt=prompt_of(trim=trim),
            completion=completion_of(message, finish=finish),
            at=float(next(self._clock)),
        )

    def say(self, *messages: Message, reply: str | Message = "ok", **fields: Any) -> Turn:
        """One turn from request to record, nothing else in flight."""
        return self.commit(self.begin(*messages, **fields), reply)
