"""Call ids along random sessions, with templates that write them into prompts.

Engines give ids from a small pool; agents ask in parallel, carry calls of their own, retry, compact, and send back what
they were shown. The oracle keeps each conversation twice, as its agent and as its engine knows it.

1. Shown ids are distinct along a session, and none is one that a client had used before.
2. Engines are told, and prompts hold, exactly the sampled ids; a new id is in no prompt.
3. Prefix: a prompt starts with its parent's path ids. Once and parallel: samples account for every token.
4. Replay: folding the events gives the same messages and the same used ids.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendering.standins import standin
from rendering.talk import LOOK, assistant, user
from sessionkit import ask, completion_of
from turnkeeper.core import PendingTurn, Session, Tree, fold
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.matching import MATCHERS
from turnkeeper.rendering import Renderer
from turnkeeper.samples import CollectOptions, collect, describe_tree, view_session
from turnkeeper.service.turns.prompt import join_prompt, render_pending

POOL = st.sampled_from(["functions.look:0", "functions.look:1", "call_0", ""])
WRITTEN = re.compile(r"## Return of (\S*)|<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>")


def calling(ids: list[str], text: str = "") -> Message:
    function = {"name": "look", "arguments": '{"at": 1}'}
    return assistant(text, *({"id": each, "type": "function", "function": function} for each in ids))


def results(ids: list[str]) -> list[Message]:
    return [{"role": "tool", "tool_call_id": each, "content": "seen"} for each in ids]


def list_ids(messages: Any) -> list[str]:
    """Every call id in the order in which a prompt has them."""
    found: list[str] = []
    for message in messages:
        found += [each["id"] for each in message.get("tool_calls") or ()]
        found += [message["tool_call_id"]] if "tool_call_id" in message else []
    return found


@dataclass
class Line:
    """One conversation, as its agent and as its engine knows it."""

    agent: list[Message] = field(default_factory=list)
    engine: list[Message] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    turn: int | None = None

    def add(self, agent: list[Message], engine: list[Message]) -> "Line":
        return Line([*self.agent, *agent], [*self.engine, *engine], self.ids, self.turn)


@dataclass
class World:
    """A session and what the oracle knows of it."""

    session: Session
    renderer: Renderer
    token_bytes: Callable[[int], bytes]
    lines: list[Line] = field(default_factory=lambda: [Line()])
    open: list[tuple[PendingTurn, Line]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    carried: dict[int, list[str]] = field(default_factory=dict)
    """What clients brought along, by the number of the turn; what a lost turn brought is free again."""
    prompts: dict[int, Any] = field(default_factory=dict)

    def ask(self, line: Line, added: Line) -> None:
        """A request: the line, and what its agent adds."""
        asked = line.add(added.agent, added.engine)
        pending = self.session.begin(ask(*asked.agent, tools=(LOOK,)), at=0.0)
        self.carried[pending.number] = list_ids(added.agent)
        assert pending.parent_id == line.turn
        assert list_ids(pending.messages) == list_ids(asked.engine)
        prompt = render_pending(self.renderer, pending)
        whole = join_prompt(pending, prompt).tolist()
        assert prompt.trim == 0
        assert whole[: len(line.ids)] == line.ids
        text = self.renderer.tokenizer.decode(freeze_ids(whole[len(line.ids) :]))
        assert [left or right for left, right in WRITTEN.findall(text)] == list_ids(added.engine)
        asked.ids = whole
        self.prompts[pending.number] = prompt
        self.open.append((pending, asked))

    def land(self, place: int, given_ids: list[str], is_kept: bool) -> None:
        """The engine's reply, recorded or lost."""
        pending, line = self.open.pop(place)
        named = self.session.name_calls(pending, calling(given_ids, f"reply {pending.number}"), self.token_bytes)
        shown = list_ids([named.message])
        assert all(shown)
        assert not set(shown) & {each for carried in self.carried.values() for each in carried}
        if not is_kept:
            self.session.abandon(pending, at=0.0)
            del self.carried[pending.number]
            return
        section = "".join(
            f"<|tool_call_begin|>{each}<|tool_call_argument_begin|>{{}}<|tool_call_end|>" for each in given_ids
        )
        ids = self.renderer.tokenizer.encode(f"</think>ok{section}<|im_end|>")
        completion = replace(completion_of(named.message, len(ids)), ids=ids, sampled_ids=named.sampled_ids)
        turn = self.session.commit(pending, prompt=self.prompts[pending.number], completion=completion, at=0.0)
        self.session.mark_delivered(turn.id, at=0.0)
        self.shown += shown
        sampled = [before or after for before, after in zip(given_ids, shown, strict=True)]
        after = line.add([named.message], [calling(sampled)])
        self.lines.append(Line(after.agent, after.engine, [*line.ids, *ids.tolist()], turn.id))


def go_on(line: Line) -> Line:
    """What an agent adds to a line: results of its last calls, or a word."""
    if line.agent and (ids := list_ids(line.agent[-1:])):
        return Line(results(ids), results(list_ids(line.engine[-1:])))
    return Line([user("go on")], [user("go on")])


def start(line: Line, own: list[str], number: int) -> Line:
    """A new root: another first word, calls of the client's own, and the last calls of a line, as compaction does."""
    first = [user(f"start {number}")]
    mine = [calling(own), *results(own)] if own else []
    kept, told = list_ids(line.agent[-1:]), list_ids(line.engine[-1:])
    return Line(
        [*first, *mine, *([calling(kept), *results(kept)] if kept else []), user("now")],
        [*first, *mine, *([calling(told), *results(told)] if told else []), user("now")],
    )


@pytest.mark.parametrize("family", ["kimi25", "kimi26"])
@given(data=st.data(), matcher=st.sampled_from(list(MATCHERS.values())))
@settings(max_examples=40, deadline=None)
def test_shown_ids_are_distinct_and_prompts_hold_sampled_ones(family: str, data: st.DataObject, matcher: Any) -> None:
    serial = count(1)
    world = World(
        session=Session.open(Tree(), matcher=matcher),
        renderer=standin(family),
        token_bytes=lambda size: next(serial).to_bytes(size, "big"),
    )
    for number in range(data.draw(st.integers(1, 10))):
        line = data.draw(st.sampled_from(world.lines))
        if line.turn is None or data.draw(st.integers(0, 4)) == 0:
            own = data.draw(st.lists(st.sampled_from(["call_0", "mine"]), max_size=2, unique=True))
            world.ask(Line(), start(line, own, number))
        else:
            world.ask(line, go_on(line))
        while world.open and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(world.open) - 1))
            world.land(place, data.draw(st.lists(POOL, max_size=3)), data.draw(st.integers(0, 5)) > 0)
    check(world)


def check(world: World) -> None:
    session = world.session
    assert len(set(world.shown)) == len(world.shown)
    again = fold(session.events, matcher=session.matcher)
    for line in world.lines[1:]:
        assert session.forest.path_ids(line.turn).tolist() == line.ids
        for each in (session, again):
            assert list_ids(each.forest.engine_messages(line.turn)) == list_ids(line.engine)
            assert list_ids(each.forest.path_messages(line.turn)) == list_ids(line.agent)
    assert all(again.has_call_id(each) for each in world.shown)
    view = view_session(session)
    metadata: JsonObject = {"tree": describe_tree(view), "turnkeeper": {}}
    options = CollectOptions.defaults()
    collection = collect(
        view, session_metadata=metadata, session_ledger=session.ledger, decode=lambda ids: "", options=options
    )
    assert collection.ledger.unaccounted == 0
    for sample in collection.samples:
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
