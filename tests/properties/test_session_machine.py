"""Random interleavings of requests against a model that shares no code with the session.

The model keeps whole paths (messages and ids) for every turn and an interval of its own clock for every engine call.
After every step:

1. A request attaches, is refused or is closed out exactly as the model says, under both policies: also one that
   renames call ids, or brings replies in other forms than they were sampled in.
2. Prefix: a turn's path ids are its parent's, less the trim, plus what was given; none ever changes.
3. Once: every reported token is held by one turn or dropped for one reason.
4. Nothing changes on failure: after a refusal, events and state are as they were.
5. Replay: folding the events gives the same state, bit for bit; so do events read back from their stored bytes.
6. Labels and live leaves follow from the model's intervals.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sessionkit import ask, assistant, call, user
from thorough import examples
from turnkeeper.choices import OnRewrittenCalls, OnTruncated
from turnkeeper.core import (
    Completion,
    DropReason,
    Event,
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
from turnkeeper.core.event import SessionOpened
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.errors import (
    AssistantLastError,
    HistoryDivergedError,
    SessionClosedError,
    TokenIntegrityError,
    TruncatedTurnError,
)
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import Message
from turnkeeper.matching import TOLERANT, ReplyRules
from turnkeeper.store import SessionDecoder, SessionEncoder, SessionOpening

TEXTS = ("x", "y")
TOOLS: tuple[tuple[dict[str, Any], ...], ...] = ((), ({"name": "t"},))


class Said(NamedTuple):
    """A message as the model knows it: at most one call, whose arguments are a number."""

    role: str
    text: str
    call: str = ""
    argument: int = 0

    def write(self) -> Message:
        if self.role == "user":
            return user(self.text)
        calls = [call("f", json.dumps({"x": self.argument}), self.call)] if self.call else None
        return assistant(self.text, tool_calls=calls)


@dataclass
class ModelTurn:
    """A turn as the model keeps it: whole paths, and when its call ran."""

    parent: int | None
    path: list[Said]
    size: int
    """How many messages at the end of its path are its own, the reply's included."""
    brought: Said | None
    """What its request brought for the reply of its parent."""
    ids: list[int]
    tools: int
    asked: tuple[Said, ...]
    began: int
    ended: int
    is_truncated: bool


@dataclass
class ModelPending:
    parent: int | None
    path: list[Said]
    brought: Said | None
    tools: int
    asked: tuple[Said, ...]
    began: int


@dataclass
class Model:
    """Sessions by brute force."""

    is_linear: bool
    max_rollback: int
    closes_truncated: bool
    choice: OnRewrittenCalls
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

    def attach(self, messages: list[Said], tools: int) -> int | None:
        fitting = [
            (len(turn.path), -cost[0], -cost[1], index)
            for index, turn in enumerate(self.turns)
            if (self.is_linear or turn.tools == tools) and (cost := self.replay(index, messages)) is not None
        ]
        return max(fitting)[3] if fitting else None

    def replay(self, index: int, messages: list[Said]) -> tuple[int, int] | None:
        """How many ids the request renames on a turn's path, and how often else it differs; None for no match."""
        if len(messages) < len(self.turns[index].path):
            return None
        names: dict[str, str] = {}
        differences = 0
        given = iter(messages)
        for at in self.ancestors(index):
            own = self.turns[at].path[-self.turns[at].size :]
            for place, stored in enumerate(own, start=1):
                said = next(given)
                is_known = place == len(own) and all(old == new for old, new in names.items())
                if said._replace(call=stored.call) != stored:
                    if not (is_known and self.is_rewritten(at, stored, said)):
                        return None
                    differences += (said.text != stored.text) + (said.argument != stored.argument)
                if bool(said.call) != bool(stored.call) or names.get(stored.call, said.call) != said.call:
                    return None
                if stored.call:
                    names[stored.call] = said.call
                if len(set(names.values())) != len(names):
                    return None
        return sum(old != new for old, new in names.items()), differences

    def is_rewritten(self, at: int, stored: Said, said: Said) -> bool:
        """Whether what came is the turn's reply in a form that may come."""
        is_it = (said.role, said.call) == ("assistant", stored.call) and said.call and said.text in ("", stored.text)
        forms = [turn.brought for turn in self.turns if turn.parent == at]
        is_open = not forms or said in forms or self.choice is OnRewrittenCalls.ALWAYS
        return bool(is_it) and is_open and self.choice is not OnRewrittenCalls.FORK

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

    def refusal(self, messages: list[Said], parent: int | None) -> type[Exception] | None:
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
                (turn.context_digest, turn.context_changed, turn.carried, turn.accepted, turn.rewrite, turn.why),
                (forest.rewritten(turn.id), tuple(forest.reply_forms(turn.id))),
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
        session.matcher,
    ]


def restore(events: Sequence[Event]) -> list[Event]:
    """The same events, told by their stored bytes alone."""
    opened, *rest = events
    assert isinstance(opened, SessionOpened)
    encoder, decoder = SessionEncoder(), SessionDecoder()
    records = [encoder.encode(each).record for each in (SessionOpening(event=opened, ttl_s=1.0), *rest)]
    opening, *told = map(decoder.decode, records)
    return [opening.event, *told]


class SessionMachine(RuleBasedStateMachine):
    """Steps that any number of agents might take at once."""

    policy: HistoryPolicy = Tree()
    choice = OnRewrittenCalls.FIRST

    def __init__(self) -> None:
        super().__init__()
        policy = self.policy
        matcher = replace(TOLERANT, replies=ReplyRules(on_rewritten_calls=self.choice))
        self.session = Session.open(policy, matcher=matcher, at=1.0)
        self.model = Model(
            is_linear=isinstance(policy, Linear),
            max_rollback=policy.max_rollback if isinstance(policy, Linear) else 0,
            closes_truncated=policy.on_truncated is OnTruncated.CLOSE,
            choice=self.choice,
        )
        self.open: list[tuple[PendingTurn, ModelPending]] = []
        self.sampled = 0
        self.dropped: dict[DropReason, int] = {}
        self.next_id = 0
        self.completions: list[Completion] = []

    @rule(data=st.data(), tools=st.sampled_from([0, 0, 0, 1]), is_renaming=st.sampled_from([False] * 7 + [True]))
    def ask(self, data: st.DataObject, tools: int, is_renaming: bool) -> None:
        """A request that goes on from some turn's path, or from a part of it, perhaps edited, rewritten or renamed."""
        paths = [[], *(self._spell(index, data) for index in range(len(self.model.turns)))]
        path = list(data.draw(st.sampled_from(paths)))
        path = path[: len(path) - data.draw(st.sampled_from([0, 0, 0, 1, 2]))]
        if path and data.draw(st.integers(0, 7)) == 0:
            path[-1] = path[-1]._replace(text="edited")
        if is_renaming:
            path = [said._replace(call=said.call and f"{said.call}'") for said in path]
        new = data.draw(st.lists(st.sampled_from(TEXTS), min_size=0 if path else 1, max_size=2))
        self._begin([*path, *(Said("user", text) for text in new)], tools)

    def _spell(self, index: int, data: st.DataObject) -> list[Said]:
        """A turn's path as a client might send it: replies as they were stored, as they came before, or changed."""
        above = self.model.ancestors(index)
        path = list(self.model.turns[index].path)
        for at, child in zip(above, [*above[1:], None], strict=True):
            place = len(self.model.turns[at].path) - 1
            if not path[place].call:
                continue
            brought = self.model.turns[child].brought if child is not None else None
            known = path[place] if brought is None else brought
            changed = [
                path[place]._replace(argument=1),
                path[place]._replace(argument=2),
                path[place]._replace(text=""),
            ]
            path[place] = data.draw(st.sampled_from([known, known, known, known, path[place], *changed]))
        return path

    def _begin(self, messages: list[Said], tools: int) -> None:
        parent = self.model.attach(messages, tools)
        refusal = self.model.refusal(messages, parent)
        request = ask(*(said.write() for said in messages), tools=TOOLS[tools])
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
        stored = known.path if known else []
        assert pending.parent_path_ids.tolist() == (known.ids if known else [])
        assert list(pending.messages) == [said.write() for said in [*stored, *messages[len(stored) :]]]
        tools = known.tools if known else tools
        asked = tuple(messages[len(stored) :])
        brought = messages[len(stored) - 1] if stored else None
        self.open.append((pending, ModelPending(parent, [*stored, *asked], brought, tools, asked, began)))

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        reply=st.sampled_from(TEXTS),
        sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        trim=st.integers(0, 1),
        is_cut=st.sampled_from([False, False, False, True]),
        is_calling=st.booleans(),
    )
    def finish(
        self, data: st.DataObject, reply: str, sizes: tuple[int, int], trim: int, is_cut: bool, is_calling: bool
    ) -> None:
        """An engine call ends well."""
        pending, known = self._take(data)
        said = Said("assistant", reply, f"c{self.model.clock}" if is_calling else "")
        prompt_ids, completion_ids = self._new_ids(sizes[0]), self._new_ids(sizes[1])
        trim = trim if known.parent is not None else 0
        completion = self._completion(completion_ids, said.write(), is_cut)
        prompt = Prompt(trim=trim, ids=freeze_ids(prompt_ids))
        ended = self.model.tick()
        turn = self.session.commit(pending, prompt=prompt, completion=completion, at=float(ended))
        above = self.model.turns[known.parent].ids if known.parent is not None else []
        self.model.turns.append(
            ModelTurn(
                parent=known.parent,
                path=[*known.path, said],
                size=len(known.asked) + 1,
                brought=known.brought,
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
            self.session.commit(pending, prompt=prompt, completion=self._completion([1], assistant("x"), False), at=0.0)
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
                    completion=self._completion([1], assistant("x"), False),
                    at=0,
                )
        assert len(self.session.forest) == len(self.model.turns)
        assert snapshot(fold(self.session.events)) == snapshot(self.session)
        assert snapshot(fold(restore(self.session.events))) == snapshot(self.session)

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
        assert snapshot(fold(restore(self.session.events))) == snapshot(self.session)

    def _take(self, data: st.DataObject) -> tuple[PendingTurn, ModelPending]:
        return self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))

    def _new_ids(self, size: int) -> list[int]:
        start, self.next_id = self.next_id, self.next_id + size
        return list(range(start, start + size))

    def _completion(self, ids: list[int], reply: Message, is_cut: bool) -> Completion:
        return Completion(
            ids=freeze_ids(ids),
            logprobs=np.array([-0.0, *(-0.25 for _ in ids[1:])]),
            message=reply,
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            versions=(VersionSpan(version="v", start=0, stop=len(ids)),),
        )


def machine(policy: HistoryPolicy, choice: OnRewrittenCalls = OnRewrittenCalls.FIRST) -> Any:
    case = type("Machine", (SessionMachine,), {"policy": policy, "choice": choice}).TestCase
    case.settings = settings(max_examples=examples(16), stateful_step_count=25, deadline=None)
    return case


TestTree = machine(Tree())
TestTreeBridging = machine(Tree(on_truncated=OnTruncated.BRIDGE))
TestTreeWithEveryForm = machine(Tree(), OnRewrittenCalls.ALWAYS)
TestTreeWithStoredForms = machine(Tree(), OnRewrittenCalls.FORK)
TestLinear = machine(Linear())
TestLinearFurther = machine(Linear(max_rollback=2, on_truncated=OnTruncated.CLOSE))
