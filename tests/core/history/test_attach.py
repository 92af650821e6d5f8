"""Where a request attaches.

1. The turn with the longest path of messages that the request begins with; of several the one with the fewest renamed
   ids, then the fewest other differences, both over the whole path, then the latest.
2. Only whole paths count: a turn whose reply does not come back is not attached to.
3. Whatever the traffic of real clients spells otherwise, each main turn attaches to the one before.
4. A message costs one comparison, whatever the depth of the forest.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sessionkit import Talk, assistant, call, completion_of, prompt_of, tool, user
from turnkeeper.core import Cause, Linear, Session, Tree, Turn, TurnRequest
from turnkeeper.jsontypes import Message
from turnkeeper.matching import MATCHERS, TOLERANT, IdPairs, Match, NormalMessage, ReplyRules

TRACES = Path(__file__).parent.parent.parent / "data" / "traces"


def test_a_request_attaches_at_the_deepest_turn() -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    talk.say(user("u"), assistant("a"), user("v"), reply="b")
    assert talk.say(user("u"), assistant("a"), user("v"), assistant("b"), user("w")).parent == 1
    assert talk.say(user("u"), assistant("a"), user("other")).parent == 0


def test_of_equal_replies_the_latest_is_gone_on_from() -> None:
    talk = Talk()
    for _ in range(3):
        talk.say(user("u"), reply="a")
    assert talk.begin(user("u"), assistant("a"), user("v")).parent_id == 2


def twins(talk: Talk, *replies: Message) -> tuple[Turn, ...]:
    return tuple(talk.say(user("u"), reply=reply) for reply in replies)


def calling(call_id: str, arguments: str = "{}", **more: Any) -> Message:
    return assistant("", tool_calls=[call("f", arguments, call_id)], **more)


@pytest.mark.parametrize("matcher", ["tolerant", "role_content_only"])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_of_equal_replies_with_other_ids_the_one_whose_ids_come_back_is_gone_on_from(matcher: str, wanted: int) -> None:
    talk = Talk(matcher=MATCHERS[matcher])
    replies = [calling(f"c{index}") for index in range(3)]
    twins(talk, *replies)
    first = talk.say(user("u"), replies[wanted], tool("r", f"c{wanted}"), reply="done")
    assert first.parent == wanted
    deeper = talk.say(user("u"), replies[wanted], tool("r", f"c{wanted}"), assistant("done"), user("v"))
    assert deeper.parent == first.id


def test_ids_that_no_twin_has_go_to_the_latest() -> None:
    talk = Talk()
    twins(talk, calling("c0"), calling("c1"))
    assert talk.begin(user("u"), calling("x"), tool("r", "x")).parent_id == 1


def test_fewest_renamed_ids_are_counted_over_the_whole_path() -> None:
    talk = Talk()
    twins(talk, calling("c0"), calling("c1"))
    for index in (0, 1):
        result = tool("r", f"c{index}")
        talk.say(user("u"), calling(f"c{index}"), result, reply=calling("d" if index else "e"))
    mixed = (user("u"), calling("c0"), tool("r", "c0"), calling("e"), tool("s", "e"))
    assert talk.begin(*mixed).parent_id == 2
    half = (user("u"), calling("c0"), tool("r", "c0"), calling("d"), tool("s", "d"))
    assert talk.begin(*half).parent_id == 3, "one renamed id on either path, the latest wins"


def test_one_renamed_id_weighs_more_than_any_other_difference() -> None:
    talk = Talk()
    twins(talk, calling("c0", '{"a": 1}', reasoning_content="why"), calling("c1", '{"a":1}'))
    assert talk.begin(user("u"), calling("c0", '{"a":1}'), tool("r", "c0")).parent_id == 0


def test_of_equally_many_renamed_ids_the_fewest_other_differences_win() -> None:
    talk = Talk()
    twins(talk, calling("c0", '{"a":1}'), calling("c1", '{"a": 1}'))
    assert talk.begin(user("u"), calling("x", '{"a":1}'), tool("r", "x")).parent_id == 0
    twins(talk, assistant("b", reasoning="r"), assistant("b"), assistant("b", reasoning="s"))
    assert talk.begin(user("u"), assistant("b"), user("v")).parent_id == 3


def test_other_differences_are_counted_over_the_whole_path() -> None:
    talk = Talk()
    twins(talk, assistant("a"), assistant("a", reasoning="r"))
    late = [talk.begin(user("u"), assistant("a", **more), user("v")) for more in ({}, {"reasoning": "r"})]
    assert [pending.parent_id for pending in late] == [0, 1]
    for pending in late:
        talk.commit(pending, "b")
    assert talk.begin(user("u"), assistant("a"), user("v"), assistant("b"), user("w")).parent_id == 2
    last = (user("u"), assistant("a", reasoning="r"), user("v"), assistant("b"), user("w"))
    assert talk.begin(*last).parent_id == 3


def test_the_deepest_turn_wins_however_much_is_renamed_on_its_path() -> None:
    talk = Talk()
    twins(talk, calling("c0"), calling("c1"))
    talk.say(user("u"), calling("c0"), tool("r", "c0"), reply="deep")
    deep = (user("u"), calling("c1"), tool("r", "c1"), assistant("deep"), user("v"))
    assert talk.begin(*deep).parent_id == 2


def test_of_equal_paths_in_other_turns_the_latest_is_gone_on_from() -> None:
    talk = Talk()
    late = talk.begin(user("u"), assistant("a"), user("v"))
    talk.say(user("u"), reply="a")
    talk.commit(late, "b")
    talk.say(user("u"), assistant("a"), user("v"), reply="b")
    assert [turn.parent for turn in talk.session.forest.turns] == [None, None, 0]
    assert talk.begin(user("u"), assistant("a"), user("v"), assistant("b"), user("w")).parent_id == 2


def test_names_bound_on_one_path_do_not_stand_in_the_way_of_another() -> None:
    talk = Talk()
    for call_id, reply in (("one", "right"), ("two", "wrong")):
        called = assistant("", tool_calls=[call("f", "{}", call_id)])
        talk.say(user("u"), reply=called)
        talk.say(user("u"), called, tool("r", call_id), reply=reply)
    renamed = assistant("", tool_calls=[call("f", "{}", "x")])
    pending = talk.begin(user("u"), renamed, tool("r", "x"), assistant("right"), user("v"))
    assert pending.parent_id == 1
    assert pending.parent_messages[2] == tool("r", "one")


def test_the_longest_path_of_messages_wins_over_the_one_of_most_turns() -> None:
    talk = Talk()
    late = talk.begin(user("u"), assistant("a"), user("v"), assistant("b"), user("w"))
    talk.say(user("u"), reply="a")
    talk.say(user("u"), assistant("a"), user("v"), reply="b")
    whole = talk.commit(late, "c")
    request = (user("u"), assistant("a"), user("v"), assistant("b"), user("w"), assistant("c"), user("x"))
    assert talk.begin(*request).parent is whole


def test_turns_of_a_sub_agent_in_between_leave_the_main_agents_path_alone() -> None:
    talk = Talk()
    main, sub = (user("task"),), (user("explore"),)
    first = talk.say(*main, reply="m1", tools=({"name": "all"},))
    for reply in ("s1", "s2"):
        talk.say(*sub, reply=reply, tools=({"name": "read"},))
        sub = (*sub, assistant(reply), user("more"))
    second = talk.say(*main, assistant("m1"), user("go on"), reply="m2", tools=({"name": "all"},))
    assert second.parent == first.id
    assert [turn.parent for turn in talk.session.forest.turns] == [None, None, 1, 0]
    assert talk.session.live_leaves() == (2, 3)


def test_a_compacted_history_is_a_root_and_leaves_the_old_path_as_it_was() -> None:
    talk = Talk()
    said = [user("task")]
    for index in range(5):
        turn = talk.say(*said, reply=f"a{index}")
        said += [turn.completion.message, user(f"u{index}")]
    bare = talk.say(user("summary"), reply="b")
    carried = talk.say(user("summary, and the last words"), said[-2], user("go on"), reply="c")
    assert [bare.parent, carried.parent] == [None, None]
    assert (bare.why.cause, carried.why.cause) == (Cause.OTHER_START, Cause.COMPACTED)
    assert (bare.carried, carried.carried) == (0, 1)
    assert talk.session.live_leaves() == (4, 5, 6)


def test_the_same_tools_in_another_spelling_of_their_keys_are_the_same_tools() -> None:
    talk = Talk(Tree())
    talk.say(user("u"), reply="a", tools=({"type": "function", "function": {"name": "t"}},))
    again = talk.begin(user("u"), assistant("a"), user("v"), tools=({"function": {"name": "t"}, "type": "function"},))
    assert again.parent_id == 0
    other = talk.begin(user("u"), assistant("a"), user("v"), tools=({"function": {"name": "T"}, "type": "function"},))
    assert other.parent_id is None


EXPECTED: dict[str, list[int | None]] = {
    "mini-swe-agent": [None, 0, 1, 2, 2, 2],
    "opencode": [None, None, 1, 2],
    "pi": [None, 0, 1],
    "py-agents": [None, 0, 1, 2, None, 4, 5],
    "py-pydai": [None, 0, 1, 2],
    "py-smolagents": [None] * 8,
    "py-strands": [None, 0, 1, 2],
    "qwen-code": [None, 0, 1],
}
"""The parent of each chat-completions call of a trace; None for a root. The others leave out replies without tool
calls, ask for titles beside the task, or rewrite every reply."""


def play(session: Session, client: str) -> list[int | None]:
    trace: dict[str, Any] = json.loads((TRACES / f"{client}.json").read_text())
    parents: list[int | None] = []
    for sent in trace["turns"]:
        if sent["protocol"] == "chat":
            body = sent["body"]
            request = TurnRequest(messages=tuple(body["messages"]), tools=tuple(body.get("tools", ())))
            pending = session.begin(request, at=0.0)
            session.commit(pending, prompt=prompt_of(), completion=completion_of(sent["reply"]), at=0.0)
            parents.append(pending.parent_id)
    return parents


@pytest.mark.parametrize("client", EXPECTED)
def test_what_real_clients_send_attaches_turn_to_turn(client: str) -> None:
    session = Session.open(Tree())
    assert play(session, client) == EXPECTED[client]
    assert all(turn.why.near is not None for turn in session.forest.turns[1:] if turn.parent is None)


@pytest.mark.parametrize("client", ["pi", "qwen-code", "py-strands", "mini-swe-agent"])
def test_what_real_clients_send_without_side_requests_is_one_live_path(client: str) -> None:
    session = Session.open(Linear())
    assert play(session, client) == EXPECTED[client]
    assert len(session.live_leaves()) == 1


class Counting:
    """The tolerant matcher, counting."""

    name = "tolerant"
    replies = ReplyRules()

    def __init__(self) -> None:
        self.calls = 0

    def match(self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Match:
        self.calls += 1
        return TOLERANT.match(stored, replayed, pairs)

    def match_reply(
        self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs, forms: Collection[str]
    ) -> Match:
        self.calls += 1
        return TOLERANT.match_reply(stored, replayed, pairs, forms)


def test_a_message_costs_one_comparison_however_deep_the_path() -> None:
    matcher = Counting()
    talk = Talk(Tree(), matcher=matcher)
    said = [user("u0")]
    for index in range(40):
        matcher.calls = 0
        talk.say(*said, reply=f"a{index}")
        assert matcher.calls == len(said) - 1
        said += [assistant(f"a{index}"), user(f"u{index + 1}")]
