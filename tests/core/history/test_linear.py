"""One live path, with a small step back.

1. d, the live turns past the last common turn with the attach point, decides: none is an extension, up to the limit
   a retry, more is refused and changes nothing.
2. A retry supersedes when it is committed, never when it begins, and destroys nothing.
3. Where nothing matches, all live turns are gone back over: a second first message after turn 1 is a retry of it.
4. Live turns whose engine call overlapped the attach point's are beside it, not past it.
5. An agent retries its own turns only; turns of another that ran beside it stand in nobody's way.
6. A refusal says how far the request went back, the limit, how many messages each side has, and the first difference.
"""

import pytest

from sessionkit import Talk, assistant, user
from turnkeeper.core import DropReason, Label, Linear, Turn
from turnkeeper.errors import HistoryDivergedError
from turnkeeper.jsontypes import Message
from turnkeeper.matching import MATCHERS


def history(*texts: str) -> tuple[Message, ...]:
    """User and assistant by turns."""
    return tuple((assistant if index % 2 else user)(text) for index, text in enumerate(texts))


def grow(talk: Talk, turns: int) -> list[Turn]:
    """Turns that each extend the one before: u0 a0 u1 a1 ..."""
    said: list[str] = []
    grown: list[Turn] = []
    for index in range(turns):
        said.append(f"u{index}")
        grown.append(talk.say(*history(*said), reply=f"a{index}"))
        said.append(f"a{index}")
    return grown


def live_path(talk: Talk) -> list[int]:
    (leaf,) = talk.session.live_leaves()
    return [turn.id for turn in talk.session.forest.path(leaf)]


def test_a_session_without_turns_has_no_live_leaf() -> None:
    assert Talk(Linear()).session.live_leaves() == ()


def test_a_retry_of_the_last_turn_takes_its_place_at_commit() -> None:
    talk = Talk(Linear())
    grow(talk, 2)
    pending = talk.begin(*history("u0", "a0", "u1"))
    assert live_path(talk) == [0, 1]
    talk.commit(pending, "again")
    assert live_path(talk) == [0, 2]
    assert talk.session.forest.label(talk.session.forest.get(pending.parent_id or 0).id) is Label.ROOT
    assert [talk.session.forest.label(turn.id) for turn in talk.session.forest.turns[1:]] == [
        Label.SUPERSEDED,
        Label.EXTENSION,
    ]


def test_a_second_first_message_right_after_turn_1_is_a_retry_of_it() -> None:
    talk = Talk(Linear())
    talk.say(user("u0"), reply="lost")
    talk.say(user("u0"), reply="a")
    assert live_path(talk) == [1]
    talk.say(*history("u0", "a", "u1"))
    assert live_path(talk) == [1, 2]


def test_a_first_message_of_another_text_replaces_turn_1_too() -> None:
    talk = Talk(Linear())
    talk.say(user("u0"))
    talk.say(user("other"))
    assert live_path(talk) == [1]


@pytest.mark.parametrize(("limit", "back"), [(1, 1), (3, 3), (3, 2)])
def test_a_request_may_go_back_up_to_the_limit(limit: int, back: int) -> None:
    talk = Talk(Linear(max_rollback=limit))
    grown = grow(talk, 4)
    kept = 4 - back
    said = [text for index in range(kept) for text in (f"u{index}", f"a{index}")]
    assert talk.say(*history(*said, "other")).parent == grown[kept - 1].id
    assert live_path(talk) == [*range(kept), 4]


@pytest.mark.parametrize(("limit", "back"), [(0, 1), (1, 2), (1, 4), (2, 3)])
def test_a_request_that_goes_back_further_is_refused_and_changes_nothing(limit: int, back: int) -> None:
    talk = Talk(Linear(max_rollback=limit))
    grow(talk, 4)
    events = list(talk.session.events)
    said = [text for index in range(4 - back) for text in (f"u{index}", f"a{index}")]
    with pytest.raises(HistoryDivergedError, match=f"back over {back} turns and at most {limit} may"):
        talk.begin(*history(*said, "other"))
    assert talk.session.events == events
    assert live_path(talk) == [0, 1, 2, 3]
    assert talk.session.in_flight == 0


def test_a_refusal_names_the_sizes_the_first_difference_and_the_way_out() -> None:
    talk = Talk(Linear())
    grow(talk, 3)
    with pytest.raises(HistoryDivergedError) as refusal:
        talk.begin(*history("u0", "rewritten", "u1"))
    said = str(refusal.value)
    assert "its 3 messages share 1 with the 6 of the live path" in said
    assert "message 1, content: stored 'a0', replayed 'rewritten'" in said
    assert "--use-session-server v2" in said
    assert refusal.value.facts["difference"]["field"] == "content"
    assert {name: refusal.value.facts[name] for name in ("rollback_turns", "max_rollback", "shared_messages")} == {
        "rollback_turns": 3,
        "max_rollback": 1,
        "shared_messages": 1,
    }


def test_a_refusal_names_the_matcher_that_would_have_gone_on() -> None:
    talk = Talk(Linear(), matcher=MATCHERS["strict"])
    thinking = assistant("a0", reasoning_content="why")
    talk.say(user("u0"), reply=thinking)
    talk.say(user("u0"), thinking, user("u1"), reply="a1")
    with pytest.raises(HistoryDivergedError) as refusal:
        talk.begin(*history("u0", "a0", "u1", "a1", "u2"))
    assert refusal.value.hint.startswith("--session-message-matcher tolerant would have matched; ")
    assert refusal.value.facts["would_match"] == "--session-message-matcher tolerant"


def test_a_refusal_of_a_request_that_only_ends_early_says_so() -> None:
    talk = Talk(Linear())
    grow(talk, 3)
    with pytest.raises(HistoryDivergedError, match="share 3 with the 6 of the live path; the request ends there"):
        talk.begin(*history("u0", "a0", "u1"))


def test_a_superseded_reply_that_arrives_late_can_still_be_gone_on_from() -> None:
    talk = Talk(Linear())
    talk.say(user("u0"), reply="slow")
    talk.say(user("u0"), reply="fast")
    assert talk.say(*history("u0", "slow", "u1")).parent == 0
    assert live_path(talk) == [0, 2]


def overlapping(
    talk: Talk, before: tuple[Message, ...], texts: tuple[str, str], replies: tuple[str, str]
) -> list[Turn]:
    """Two turns of one parent whose engine calls overlap."""
    pending = [talk.begin(*before, user(text)) for text in texts]
    return [talk.commit(each, reply) for each, reply in zip(pending, replies, strict=True)]


def test_both_of_two_parallel_first_turns_stay_continuable() -> None:
    talk = Talk(Linear())
    overlapping(talk, (), ("u0", "u0"), ("A", "B"))
    assert talk.say(*history("u0", "A", "u1")).parent == 0
    assert talk.say(*history("u0", "B", "u1")).parent == 1
    for reply, parent in (("A", 2), ("B", 3)):
        assert talk.say(*history("u0", reply, "u1", "ok", "u2")).parent == parent


def test_parallel_siblings_behind_a_common_turn_stay_continuable_however_long_the_other_grew() -> None:
    talk = Talk(Linear())
    grow(talk, 1)
    left, right = overlapping(talk, history("u0", "a0"), ("l", "r"), ("L", "R"))
    tail: list[str] = ["u0", "a0", "r", "R"]
    for index in range(3):
        talk.say(*history(*tail, f"x{index}"), reply=f"y{index}")
        tail += [f"x{index}", f"y{index}"]
    assert talk.say(*history("u0", "a0", "l", "L", "next")).parent == left.id
    assert talk.say(*history(*tail, "next")).parent != right.id


@pytest.mark.parametrize("limit", [0, 1])
def test_only_turns_before_the_overlap_count(limit: int) -> None:
    """x was over before y began; z, behind x, ran beside y: going on from y goes back over x only."""
    talk = Talk(Linear(max_rollback=limit))
    y_request = history("y")
    if limit:
        talk.say(user("x"), reply="X")
        y = talk.begin(*y_request)
    else:
        y = talk.begin(*y_request)
        talk.say(user("x"), reply="X")
    z = talk.begin(*history("x", "X", "z"))
    talk.commit(y, "Y")
    talk.commit(z, "Z")
    talk.say(*history("x", "X", "z", "Z", "more"))
    assert talk.say(*history("y", "Y", "on")).parent == 1
    assert live_path(talk) == [1, 4]


def test_a_live_turn_that_ran_beside_the_attach_point_itself_does_not_count() -> None:
    """y came after x, but z behind x and w behind y ran at one time: going on from w passes x only."""
    talk = Talk(Linear())
    talk.say(user("x"), reply="X")
    talk.say(user("y"), reply="Y")
    z = talk.begin(*history("x", "X", "z"))
    w = talk.begin(*history("y", "Y", "w"))
    talk.commit(w, "W")
    talk.commit(z, "Z")
    assert live_path(talk) == [0, 3]
    assert talk.say(*history("y", "Y", "w", "W", "on")).parent == 2


def test_a_third_request_beside_two_parallel_ones_is_a_retry_of_the_live_one() -> None:
    talk = Talk(Linear())
    overlapping(talk, (), ("u0", "u0"), ("A", "B"))
    talk.say(user("u0"), reply="C")
    forest = talk.session.forest
    assert [forest.label(turn.id) for turn in forest.turns] == [Label.SUPERSEDED, Label.SUPERSEDED, Label.ROOT]


def test_an_abandoned_retry_supersedes_nothing() -> None:
    talk = Talk(Linear())
    grow(talk, 2)
    talk.session.abandon(talk.begin(*history("u0", "a0", "u1")), at=9.0, reason=DropReason.CLIENT_GONE)
    assert live_path(talk) == [0, 1]
    assert talk.session.forest.label(talk.session.forest.turns[1].id) is Label.EXTENSION


SUB = {"x-claude-code-agent-id": "a7"}
OTHER = {"x-claude-code-agent-id": "b8"}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        pytest.param({}, SUB, "sub-agent a7 cannot retry turn 0 of the main agent", id="a sub-agent"),
        pytest.param(SUB, {}, "the main agent cannot retry turn 0 of sub-agent a7", id="the main agent"),
        pytest.param(SUB, OTHER, "sub-agent b8 cannot retry turn 0 of sub-agent a7", id="another sub-agent"),
    ],
)
@pytest.mark.parametrize("text", ["u", "another"])
def test_another_agents_turn_is_not_taken_for_one_to_retry(
    first: dict[str, str], second: dict[str, str], named: str, text: str
) -> None:
    talk = Talk(Linear(max_rollback=3))
    talk.say(user("u"), headers=first)
    with pytest.raises(HistoryDivergedError, match=named) as caught:
        talk.begin(user(text), headers=second)
    assert "--use-session-server v2" in (caught.value.hint or "")
    assert (len(talk.session.forest), live_path(talk)) == (1, [0])
    assert talk.session.in_flight == 0


def test_an_agent_may_go_on_from_another_agents_turn() -> None:
    talk = Talk(Linear())
    talk.say(user("u"), reply="a")
    assert talk.say(user("u"), assistant("a"), user("v"), headers=SUB).parent == 0


def test_agents_whose_turns_ran_beside_each_other_both_go_on() -> None:
    talk = Talk(Linear())
    main, sub = talk.begin(user("u")), talk.begin(user("v"), headers=SUB)
    talk.commit(main, "a")
    talk.commit(sub, "b")
    assert talk.say(user("u"), assistant("a"), user("x")).parent == 0
    assert talk.say(user("v"), assistant("b"), user("y"), headers=SUB).parent == 1
