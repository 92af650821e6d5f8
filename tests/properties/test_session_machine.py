"""Random interleavings of requests against a model that shares no code with the session.

The model keeps whole paths (messages and ids) for every turn and an interval of its own clock for every engine call.
After every step:

1. A request attaches, is refused or is closed out exactly as the model says, under both policies.
2. Prefix: a turn's path ids are its parent's, less the trim, plus what was given; none ever changes.
3. Once: every reported token is held by one turn or dropped for one reason.
4. Nothing changes on failure: after a refusal, events and state are as they were.
5. Replay: folding the events gives the same state, bit for bit.
6. Labels and live leaves follow from the model's intervals.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessionkit import ask, assistant, user
from turnkeeper.choices import OnTruncated
from turnkeeper.core import (
    Completion,
    DropReason,
    FinishReason,
    HistoryPolicy,
    Linear,
    PendingTurn,
    Prompt,
    Session,
    Tree,
    VersionSpan,
    fold,
)
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.errors import (
    AssistantLastError,
    HistoryDivergedError,
    SessionClosedError,
    TokenIntegrityError,
    TruncatedTurnError,
)
from turnkeeper.ids import TurnId

TEXTS = ("x", "y")
TOOLS: tuple[tuple[dict[str, Any], ...], ...] = ((), ({"name": "t"},))


@dataclass
class ModelTurn:
    """A turn as the model keeps it: whole paths, and when its call ran."""

    parent: int | None
    path: list[tuple[str, str]]
    ids: list[int]
    tools: int
    asked: tuple[tuple[str, str], ...]
    began: int
    ended: int
    is_truncated: bool


@dataclass
class ModelPending:
    parent: int | None
    path: list[tuple[str, str]]
    tools: int
    asked: tuple[tuple[str, str], ...]
    began: int


@dataclass
class Model:
    """Sessions by brute force."""

    is_linear: bool
    max_rollback: int
    closes_truncated: bool
    turns: list[ModelTurn] = field(default_factory=list[ModelTurn])
    clock: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def ancestors(self, index: int | None) -> list[int]:
        found: list[int] = []
        while index is not None:
            found.insert(0, index)
            index = self.turns[index].parent
        return found

    def attach(self, messages: list[tuple[str, str]], tools: int) -> int | None:
        fitting = [
            (len(turn.path), index)
            for index, turn in enumerate(self.turns)
            if messages[: len(turn.path)] == turn.path and (self.is_linear or turn.tools == tools)
        ]
        return max(fitting)[1] if fitting else None

    def overlap(self, a: int, b: int) -> bool:
        return self.turns[a].began < self.turns[b].ended and self.turns[b].began < self.turns[a].ended

    def gone_back(self, parent: int | None) -> int:
        live = self.ancestors(len(self.turns) - 1) if self.turns else []
        beside = self.ancestors(parent)
        past = [index for index in live if index not in beside]
        off = [index for index in beside if index not in live]
        count = 0
        for index in past:
            if off and (self.overlap(index, off[0]) or self.overlap(index, off[-1])):
                break
            count += 1
        return count

    def refusal(self, messages: list[tuple[str, str]], parent: int | None) -> type[Exception] | None:
        if messages[-1][0] == "assistant":
            return AssistantLastError
        if self.is_linear and self.gone_back(parent) > self.max_rollback:
            return HistoryDivergedError
        if parent is not None and self.turns[parent].is_truncated and self.closes_truncated:
            return TruncatedTurnError
        return None

    def leaves(self) -> list[int]:
        parents = {turn.parent for turn in self.turns}
        leaves = [index for index in range(len(self.turns)) if index not in parents]
        return leaves[-1:] if self.is_linear else leaves

    def label(self, index: int) -> str:
        turn = self.turns[index]
        siblings = [each for each, other in enumerate(self.turns) if other.parent == turn.parent and each != index]
        twins = [
            each
            for each in siblings
            if self.turns[each].asked == turn.asked
            and (turn.parent is not None or self.turns[each].tools == turn.tools)
        ]
        if any(each > index and not self.overlap(each, index) for each in twins):
            return "superseded"
        if any(self.overlap(each, index) for each in twins):
            return "parallel"
        if turn.parent is None:
            return "root"
        return "branch" if any(each < index for each in siblings if each not in twins) else "extension"


def snapshot(session: Session) -> list[Any]:
    """All that is true of a session, arrays as bytes."""
    forest = session.forest
    return [
        [
            (
                turn.id,
                turn.parent,
                turn.messages,
                turn.request,
                turn.prompt.trim,
                turn.prompt.ids.tobytes(),
                turn.completion.ids.tobytes(),
                turn.completion.logprobs.tobytes(),
                turn.completion.message,
                turn.completion.versions,
                (turn.begun_after, turn.begun_at, turn.committed_at, turn.path_tokens, turn.path_messages),
                (turn.context_digest, turn.context_changed, turn.carried, turn.accepted, turn.why),
                forest.path_ids(turn.id).tobytes(),
                forest.label(turn.id),
                forest.children(turn.id),
                session.is_delivered(turn.id),
            )
            for turn in forest.turns
        ],
        session.live_leaves(),
        session.ledger,
        session.closed_as,
        session.policy,
        session.matcher.name,
    ]


class SessionMachine(RuleBasedStateMachine):
    """Steps that any number of agents might take at once."""

    policy: HistoryPolicy = Tree()

    def __init__(self) -> None:
        super().__init__()
        policy = self.policy
        self.session = Session.open(policy, at=1.0)
        self.model = Model(
            is_linear=isinstance(policy, Linear),
            max_rollback=policy.max_rollback if isinstance(policy, Linear) else 0,
            closes_truncated=policy.on_truncated is OnTruncated.CLOSE,
        )
        self.open: list[tuple[PendingTurn, ModelPending]] = []
        self.sampled = 0
        self.dropped: dict[DropReason, int] = {}
        self.next_id = 0
        self.completions: list[Completion] = []

    @rule(data=st.data(), tools=st.sampled_from([0, 0, 0, 1]))
    def ask(self, data: st.DataObject, tools: int) -> None:
        """A request that goes on from some turn's path, or from a part of it, perhaps edited."""
        paths = [[], *(turn.path for turn in self.model.turns)]
        path = list(data.draw(st.sampled_from(paths)))
        path = path[: len(path) - data.draw(st.sampled_from([0, 0, 0, 1, 2]))]
        if path and data.draw(st.integers(0, 7)) == 0:
            path[-1] = (path[-1][0], "edited")
        new = data.draw(st.lists(st.sampled_from(TEXTS), min_size=0 if path else 1, max_size=2))
        self._begin([*path, *(("user", text) for text in new)], tools)

    def _begin(self, messages: list[tuple[str, str]], tools: int) -> None:
        parent = self.model.attach(messages, tools)
        refusal = self.model.refusal(messages, parent)
        request = ask(
            *(user(text) if role == "user" else assistant(text) for role, text in messages), tools=TOOLS[tools]
        )
        before = snapshot(self.session)
        began = self.model.tick()
        if refusal is not None:
            with pytest.raises(refusal):
                self.session.begin(request, at=float(began))
            assert snapshot(self.session) == before
            return
        pending = self.session.begin(request, at=float(began))
        assert snapshot(self.session) == before
        assert pending.parent_id == parent
        known = self.model.turns[parent] if parent is not None else None
        size = len(known.path) if known else 0
        assert pending.parent_path_ids.tolist() == (known.ids if known else [])
        assert len(pending.appended) == len(messages) - size
        tools = known.tools if known else tools
        asked = tuple(messages[size:])
        self.open.append((pending, ModelPending(parent, messages, tools, asked, began)))

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        reply=st.sampled_from(TEXTS),
        sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        trim=st.integers(0, 1),
        is_cut=st.sampled_from([False, False, False, True]),
    )
    def finish(self, data: st.DataObject, reply: str, sizes: tuple[int, int], trim: int, is_cut: bool) -> None:
        """An engine call ends well."""
        pending, known = self._take(data)
        prompt_ids, completion_ids = self._new_ids(sizes[0]), self._new_ids(sizes[1])
        trim = trim if known.parent is not None else 0
        completion = self._completion(completion_ids, reply, is_cut)
        prompt = Prompt(trim=trim, ids=freeze_ids(prompt_ids))
        ended = self.model.tick()
        turn = self.session.commit(pending, prompt=prompt, completion=completion, at=float(ended))
        above = self.model.turns[known.parent].ids if known.parent is not None else []
        self.model.turns.append(
            ModelTurn(
                parent=known.parent,
                path=[*known.path, ("assistant", reply)],
                ids=[*above[: len(above) - trim], *prompt_ids, *completion_ids],
                tools=known.tools,
                asked=known.asked,
                began=known.began,
                ended=ended,
                is_truncated=is_cut,
            )
        )
        assert turn.id == len(self.model.turns) - 1
        self.completions.append(completion)
        self.sampled += len(completion_ids)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), trim=st.sampled_from([-1, 2]))
    def commit_what_does_not_fit(self, data: st.DataObject, trim: int) -> None:
        """A prompt that breaks the prefix is refused, and the pending turn can still be ended."""
        pending, _ = data.draw(st.sampled_from(self.open))
        before = snapshot(self.session)
        prompt = Prompt(trim=trim, ids=freeze_ids([1]))
        with pytest.raises(TokenIntegrityError):
            self.session.commit(pending, prompt=prompt, completion=self._completion([1], "x", False), at=0.0)
        assert snapshot(self.session) == before

    @precondition(lambda self: self.open)
    @rule(data=st.data(), reason=st.sampled_from(DropReason), tokens=st.one_of(st.none(), st.integers(0, 5)))
    def give_up(self, data: st.DataObject, reason: DropReason, tokens: int | None) -> None:
        """An engine call ends badly, or its agent is gone."""
        pending, _ = self._take(data)
        self.session.abandon(pending, at=0.0, reason=reason, sampled_tokens=tokens)
        if tokens:
            self.sampled += tokens
            self.dropped[reason] = self.dropped.get(reason, 0) + tokens

    @precondition(lambda self: self.model.turns)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """A reply was written in full."""
        turn_id = TurnId(data.draw(st.integers(0, len(self.model.turns) - 1)))
        self.session.mark_delivered(turn_id, at=0.0)
        assert self.session.is_delivered(turn_id)

    def teardown(self) -> None:
        """A closed session keeps what it has and takes nothing more."""
        self.session.close("the end", at=0.0)
        for pending, _ in self.open:
            with pytest.raises(SessionClosedError):
                self.session.commit(
                    pending,
                    prompt=Prompt(trim=0, ids=freeze_ids([1])),
                    completion=self._completion([1], "x", False),
                    at=0,
                )
        assert len(self.session.forest) == len(self.model.turns)
        assert snapshot(fold(self.session.events)) == snapshot(self.session)

    @invariant()
    def paths_are_the_models(self) -> None:
        forest = self.session.forest
        assert len(forest) == len(self.model.turns)
        for index, known in enumerate(self.model.turns):
            assert forest.path_ids(TurnId(index)).tolist() == known.ids
            assert forest.get(TurnId(index)).completion is self.completions[index]
        assert list(self.session.live_leaves()) == self.model.leaves()
        assert [str(forest.label(turn.id)) for turn in forest.turns] == [
            self.model.label(index) for index in range(len(self.model.turns))
        ]
        assert self.session.in_flight == len(self.open)

    @invariant()
    def every_token_is_accounted_for_once(self) -> None:
        held = sum(len(turn.completion.ids) for turn in self.session.forest.turns)
        assert self.session.ledger.sampled == self.sampled
        assert self.session.ledger.dropped == self.dropped
        assert self.session.ledger.unaccounted == held

    @invariant()
    def folding_the_events_gives_the_state(self) -> None:
        assert snapshot(fold(self.session.events)) == snapshot(self.session)

    def _take(self, data: st.DataObject) -> tuple[PendingTurn, ModelPending]:
        return self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))

    def _new_ids(self, size: int) -> list[int]:
        start, self.next_id = self.next_id, self.next_id + size
        return list(range(start, start + size))

    def _completion(self, ids: list[int], reply: str, is_cut: bool) -> Completion:
        return Completion(
            ids=freeze_ids(ids),
            logprobs=np.array([-0.0, *(-0.25 for _ in ids[1:])]),
            message=assistant(reply),
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            versions=(VersionSpan(version="v", start=0, stop=len(ids)),),
        )


def machine(policy: HistoryPolicy) -> Any:
    case = type("Machine", (SessionMachine,), {"policy": policy}).TestCase
    case.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    return case


TestTree = machine(Tree())
TestTreeBridging = machine(Tree(on_truncated=OnTruncated.BRIDGE))
TestLinear = machine(Linear())
TestLinearFurther = machine(Linear(max_rollback=2, on_truncated=OnTruncated.CLOSE))
