"""Call ids, unique along a session.

1. An id that no turn of the session has used is handed on; any other, a missing and a repeated one too, is minted.
2. Used are the ids of replies, of calls and results that clients carry, and the names that clients give to calls; of
   committed turns for good, of a turn in flight until it ends.
3. Agents replay the shown id, under every matcher; prompts and engine messages have the sampled one.
4. The events rebuild which ids are used, and what was sampled.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from sessionkit import Talk, assistant, call, completion_of, prompt_of, tool, user
from turnkeeper.core import Linear, PendingTurn, Session, Tree, Turn, fold
from turnkeeper.core.callids import name_calls
from turnkeeper.jsontypes import Message
from turnkeeper.matching import MATCHERS, TOLERANT


def draw_from(start: int = 1) -> Callable[[int], bytes]:
    """Random bytes that nobody has to guess."""
    serial = count(start)
    return lambda size: next(serial).to_bytes(size, "big")


def mint(number: int) -> str:
    return f"call_{number:024x}"


def calling(*ids: Any) -> Message:
    return assistant("", tool_calls=[call("look", "{}", each) for each in ids])


class Speaker(Talk):
    """A talk whose replies are named as the service names them."""

    draw = staticmethod(draw_from())

    def reply(self, pending: PendingTurn, message: Message) -> Turn:
        named = self.session.name_calls(pending, message, self.draw)
        completion = replace(completion_of(named.message), sampled_ids=named.sampled_ids)
        return self.session.commit(pending, prompt=prompt_of(), completion=completion, at=0.0)

    def turn(self, *messages: Message, reply: Message, **fields: Any) -> Turn:
        return self.reply(self.begin(*messages, **fields), reply)


def shown_ids(turn: Turn) -> list[str]:
    return [each["id"] for each in turn.completion.message["tool_calls"]]


@pytest.mark.parametrize(
    ("given", "shown", "sampled"),
    [
        pytest.param(["a", "b"], ["a", "b"], {}, id="new ones"),
        pytest.param([], [], {}, id="no calls"),
        pytest.param(["used"], [mint(1)], {mint(1): "used"}, id="one in use"),
        pytest.param(["", ""], [mint(1), mint(2)], {}, id="empty"),
        pytest.param([None, "a"], [mint(1), "a"], {}, id="missing"),
        pytest.param(["a", "a"], ["a", mint(1)], {mint(1): "a"}, id="one twice"),
        pytest.param(["a", "a", "a"], ["a", mint(1), mint(2)], {mint(1): "a", mint(2): "a"}, id="one three times"),
        pytest.param(["used", "a", ""], [mint(1), "a", mint(2)], {mint(1): "used"}, id="some of each"),
    ],
)
def test_each_call_gets_an_id_of_its_own(given: list[Any], shown: list[str], sampled: dict[str, str]) -> None:
    message = {**calling(*given), "reasoning_content": "why"}
    named = name_calls(message, {"used"}.__contains__, draw_from())
    assert [each["id"] for each in named.message["tool_calls"]] == shown
    assert named.sampled_ids == sampled
    assert [each["id"] for each in message["tool_calls"]] == given
    assert (named.message is message) == (given == shown)
    assert {**named.message, "tool_calls": ()} == {**message, "tool_calls": ()}
    assert [each["function"] for each in named.message["tool_calls"]] == [
        each["function"] for each in calling(*given)["tool_calls"]
    ]


def test_a_message_without_calls_stays_as_it_is() -> None:
    message = assistant("text")
    assert name_calls(message, bool, draw_from()).message is message


def test_engines_that_repeat_an_id_are_told_it_again_and_agents_are_not() -> None:
    talk = Speaker()
    said: list[Message] = [user("u")]
    turns: list[Turn] = []
    for _ in range(3):
        turns.append(talk.turn(*said, reply=calling("call_0")))
        said += [turns[-1].completion.message, tool("r", shown_ids(turns[-1])[0])]
    shown = [shown_ids(turn)[0] for turn in turns]
    assert shown[0] == "call_0"
    assert len(set(shown)) == 3
    assert [turn.parent for turn in turns] == [None, 0, 1]
    pending = talk.begin(*said)
    told = [each["tool_calls"][0]["id"] for each in pending.messages if each["role"] == "assistant"]
    answered = [each["tool_call_id"] for each in pending.messages if each["role"] == "tool"]
    assert told == answered == ["call_0"] * 3
    assert [each["tool_call_id"] for each in pending.shown] == shown[2:]
    assert talk.session.forest.engine_messages(2) == pending.parent_messages


def keep(turn_of: Speaker) -> None:
    turn_of.turn(user("u"), reply=calling("x"))


def carry(talk: Speaker) -> None:
    talk.turn(user("u"), calling("x"), tool("r", "x"), user("v"), reply=assistant("ok"))


def carry_result(talk: Speaker) -> None:
    talk.turn(user("u"), tool("r", "x"), reply=assistant("ok"))


def rename(talk: Speaker) -> None:
    talk.turn(user("u"), reply=calling("theirs"))
    talk.turn(user("u"), calling("x"), tool("r", "x"), reply=assistant("ok"))


def hold(talk: Speaker) -> None:
    talk.session.name_calls(talk.begin(user("u")), calling("x"), talk.draw)


def hold_carried(talk: Speaker) -> None:
    talk.begin(user("u"), calling("x"), tool("r", "x"))


def hold_renamed(talk: Speaker) -> None:
    talk.turn(user("u"), reply=calling("theirs"))
    talk.begin(user("u"), calling("x"), tool("r", "x"))


def give_up(talk: Speaker) -> None:
    pending = talk.begin(user("u"), calling("x"), tool("r", "x"))
    talk.session.name_calls(pending, calling("x", "y"), talk.draw)
    talk.session.abandon(pending, at=0.0)


@pytest.mark.parametrize(
    ("use", "is_used", "is_kept"),
    [
        pytest.param(keep, True, True, id="a reply's"),
        pytest.param(carry, True, True, id="a call that the client carries"),
        pytest.param(carry_result, True, True, id="a result that the client carries"),
        pytest.param(rename, True, True, id="the client's name for a call"),
        pytest.param(hold, True, False, id="a reply's in flight"),
        pytest.param(hold_carried, True, False, id="a carried call's in flight"),
        pytest.param(hold_renamed, True, False, id="the client's name in flight"),
        pytest.param(give_up, False, False, id="given up"),
        pytest.param(lambda talk: None, False, False, id="nobody's"),
    ],
)
@pytest.mark.parametrize("policy", [Tree(), Linear()], ids=["tree", "linear"])
def test_an_id_is_used_by(use: Callable[[Speaker], None], is_used: bool, is_kept: bool, policy: Any) -> None:
    talk = Speaker(policy)
    use(talk)
    assert talk.session.has_call_id("x") is is_used
    assert fold(talk.session.events, matcher=TOLERANT).has_call_id("x") is is_kept
    other = Talk(Tree())
    assert not other.session.has_call_id("x")


def test_two_turns_in_flight_never_show_one_id() -> None:
    talk = Speaker()
    first, second = talk.begin(user("u")), talk.begin(user("v"))
    later = talk.reply(second, calling("call_0"))
    earlier = talk.reply(first, calling("call_0"))
    assert shown_ids(later) == ["call_0"]
    assert shown_ids(earlier) != ["call_0"]
    assert earlier.completion.sampled_ids == {shown_ids(earlier)[0]: "call_0"}


def test_an_id_that_two_turns_in_flight_carry_is_held_until_both_ended() -> None:
    talk = Speaker()
    pending = [talk.begin(user("u"), calling("x"), user("v")) for _ in range(2)]
    for each in pending:
        assert talk.session.has_call_id("x")
        talk.session.abandon(each, at=0.0)
    assert not talk.session.has_call_id("x")


def test_a_turn_that_has_ended_is_given_no_ids() -> None:
    talk = Speaker()
    pending = talk.begin(user("u"))
    talk.session.abandon(pending, at=0.0)
    with pytest.raises(ValueError, match="already committed or abandoned"):
        talk.session.name_calls(pending, calling("x"), talk.draw)


@pytest.mark.parametrize("name", MATCHERS)
def test_shown_ids_are_matched_under_every_matcher(name: str) -> None:
    talk = Speaker(matcher=MATCHERS[name])
    talk.turn(user("u"), reply=calling("call_0"))
    second = talk.turn(user("v"), reply=calling("call_0", "call_0"))
    one, two = shown_ids(second)
    third = talk.turn(user("v"), second.completion.message, tool("1", one), tool("2", two), reply=assistant("ok"))
    assert (third.parent, third.accepted) == (second.id, ())
    told = talk.session.forest.engine_messages(third.id)
    assert [each["id"] for each in told[1]["tool_calls"]] == ["call_0", "call_0"]
    assert [each["tool_call_id"] for each in told[2:4]] == ["call_0", "call_0"]
    assert [each["tool_call_id"] for each in third.messages] == [one, two]


def test_a_name_that_the_client_gave_stands_for_the_sampled_id() -> None:
    talk = Speaker()
    talk.turn(user("u"), reply=calling("call_0"))
    second = talk.turn(user("v"), reply=calling("call_0"))
    pending = talk.begin(user("v"), calling("mine"), tool("r", "mine"))
    assert pending.parent_id == second.id
    assert pending.shown == (tool("r", shown_ids(second)[0]),)
    assert pending.appended == (tool("r", "call_0"),)


def test_a_shown_id_that_is_carried_elsewhere_is_rendered_as_it_was_sampled() -> None:
    """A compacted history keeps the last calls: the model is told the id that it once wrote."""
    talk = Speaker()
    talk.turn(user("u"), reply=calling("functions.look:0"))
    kept = talk.turn(user("v"), reply=calling("functions.look:0"))
    shown = shown_ids(kept)[0]
    root = talk.turn(user("summary"), calling(shown, "theirs"), tool("r", shown), reply=assistant("ok"))
    assert root.parent is None
    told = talk.session.forest.engine_messages(root.id)
    assert [each["id"] for each in told[1]["tool_calls"]] == ["functions.look:0", "theirs"]
    assert told[2]["tool_call_id"] == "functions.look:0"
    assert root.messages[2]["tool_call_id"] == shown


def test_events_rebuild_what_was_sampled() -> None:
    talk = Speaker()
    talk.turn(user("u"), reply=calling("call_0"))
    second = talk.turn(user("v"), reply=calling("call_0"))
    again = fold(talk.session.events, matcher=TOLERANT)
    request = [user("v"), second.completion.message, tool("r", shown_ids(second)[0])]
    assert begin(again, request).messages == begin(talk.session, request).messages
    assert again.forest.engine_messages(second.id) == talk.session.forest.engine_messages(second.id)


def begin(session: Session, messages: list[Message]) -> PendingTurn:
    talk = Talk()
    talk.session = session
    return talk.begin(*messages)
