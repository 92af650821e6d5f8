"""Sessions with known ids for the tests of samples."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from channelkit import take_channels
from sessionkit import ask, assistant, user
from turnkeeper.channels.routing import RoutingRows
from turnkeeper.choices import OnToolsChange, OnTruncated
from turnkeeper.core import Completion, FinishReason, Linear, Prompt, Session, Tree, Turn, VersionSpan
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.samples import (
    Collection,
    CollectOptions,
    Outcome,
    collect,
    describe_tree,
    forecast,
    load_hooks,
    view_session,
)

LINEAR = Linear(max_rollback=1, on_tools_change=OnToolsChange.KEEP, on_truncated=OnTruncated.BRIDGE)
TREE = Tree(on_tools_change=OnToolsChange.FORK, on_truncated=OnTruncated.BRIDGE)
OPTIONS = CollectOptions(hooks=load_hooks())


def spell(ids: TokenIds) -> str:
    """A decoder that shows where pieces begin."""
    return "<" + " ".join(map(str, ids.tolist())) + ">"


def rows_of(values: Iterable[int]) -> RoutingRows:
    """One layer, one choice: row i is the i-th value."""
    return RoutingRows(experts_RLK=np.array([[[value]] for value in values], dtype=np.uint8).reshape(-1, 1, 1))


class Story:
    """A session told turn by turn with given ids."""

    def __init__(self, policy: Linear | Tree = LINEAR) -> None:
        self.session = Session.open(policy)
        self._clock = 100.0

    def tick(self) -> float:
        self._clock += 1.0
        return self._clock

    def begin(
        self,
        parent: Turn | None = None,
        text: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        headers: dict[str, str] | None = None,
        model: str = "",
    ):
        """Ask something after a turn: messages, or a user's text, which is new unless given."""
        history = self.session.forest.path_messages(parent.id if parent else None)
        at = self.tick()
        asked = [user(text or f"asked at {at}")] if messages is None else messages
        return self.session.begin(ask(*history, *asked, headers=headers or {}, model=model), at=at)

    def commit(
        self,
        pending: Any,
        prompt: Sequence[int],
        sampled: Sequence[int],
        *,
        trim: int = 0,
        logprobs: Sequence[float] | None = None,
        finish: FinishReason = FinishReason.STOP,
        versions: tuple[VersionSpan, ...] | None = None,
        delivered: bool = True,
        reply: str | None = None,
        **fields: Any,
    ) -> Turn:
        completion = Completion(
            ids=freeze_ids(sampled),
            logprobs=np.array([-value / 10 for value in sampled] if logprobs is None else logprobs, dtype=np.float64),
            message=assistant(reply or f"reply {self.tick()}"),
            finish_reason=finish,
            versions=versions or (VersionSpan(version="v1", start=0, stop=len(sampled)),),
            response_id=f"chat-{len(self.session.forest)}",
            **take_channels(fields),
        )
        turn = self.session.commit(
            pending, prompt=Prompt(trim=trim, ids=freeze_ids(prompt)), completion=completion, at=self.tick()
        )
        if delivered:
            self.session.mark_delivered(turn.id, at=self.tick())
        return turn

    def say(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        *,
        after: Turn | None = None,
        text: str | None = None,
        messages: Sequence[Message] | None = None,
        headers: dict[str, str] | None = None,
        model: str = "",
        **fields: Any,
    ) -> Turn:
        """One turn from request to record, nothing else in flight."""
        pending = self.begin(after, text, messages=messages, headers=headers, model=model)
        return self.commit(pending, prompt, sampled, **fields)

    def metadata(self) -> JsonObject:
        """What GET would show."""
        known: JsonObject = {"max_trim_tokens": 1, "turnkeeper": {"kept": True}}
        if isinstance(self.session.policy, Tree):
            known["tree"] = describe_tree(view_session(self.session))
        return known

    def collect(
        self, options: CollectOptions = OPTIONS, *, train_models: Sequence[str] = (), **fields: Any
    ) -> Collection:
        return collect(
            view_session(self.session, train_models=train_models),
            session_metadata=self.metadata(),
            session_ledger=self.session.ledger,
            decode=spell,
            options=options,
            **fields,
        )

    def forecast(
        self,
        options: CollectOptions = OPTIONS,
        *,
        train_models: Sequence[str] = (),
        max_seq_len: int | None = None,
    ) -> Outcome:
        """What a collect would say of the tokens."""
        return forecast(
            view_session(self.session, train_models=train_models),
            session_ledger=self.session.ledger,
            options=options,
            max_seq_len=max_seq_len,
        )
