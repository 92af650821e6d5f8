"""Replies that come back rewritten, from session to turn.

1. Under `tolerant` a reply is known by its call ids at its place on a path whose earlier messages match; the stored
   form is what the path goes on with, and the turn says what came.
2. The first request to go on from it decides: a third form forks, cause `rewritten_later`, under both policies.
3. Turns that were in flight at one time keep each its form: none loses its continuation.
4. An id anywhere else is carried text: behind a compaction, in another root, in a message that the client gave.
5. A retry is recognised, and folding the events gives the same state.
"""

from dataclasses import replace

import pytest

from sessionkit import Talk, ask, assistant, call, system, tool, user
from turnkeeper.choices import OnRewrittenCalls
from turnkeeper.core import Cause, Linear, Tree, build_query, fold
from turnkeeper.core.idempotency import digest_request
from turnkeeper.errors import HistoryDivergedError
from turnkeeper.jsontypes import Message
from turnkeeper.matching import MATCHERS, TOLERANT, Matcher, ReplyRules, RewriteKind

SAMPLED, FIRST, THIRD = '{"a":1}', '{"a":1,"all":false}', '{"a":1,"all":true}'


def called(arguments: str = SAMPLED, call_id: str = "c1", text: str = "do") -> Message:
    return assistant(text, tool_calls=[call("f", arguments, call_id)])


def going_on(arguments: str, result: str = "r", call_id: str = "c1") -> tuple[Message, ...]:
    return (user("u"), called(arguments, call_id), tool(result, call_id))


def under(choice: OnRewrittenCalls) -> Matcher:
    return replace(TOLERANT, replies=ReplyRules(on_rewritten_calls=choice))


def test_a_rewritten_reply_is_the_stored_one_and_the_path_keeps_the_sampled_form() -> None:
    talk = Talk()
    first = talk.say(user("u"), reply=called())
    pending = talk.begin(*going_on(FIRST))
    assert pending.parent is first
    assert pending.messages[1] == called()
    second = talk.commit(pending, "done")
    assert second.rewrite is not None
    assert second.rewrite.kinds == (RewriteKind.KEYS_ADDED,)
    assert [(each.index, each.field) for each in second.accepted] == [(1, "tool_calls[0].arguments")]
    assert talk.session.forest.rewritten(first.id) == (RewriteKind.KEYS_ADDED,)
    assert talk.session.forest.rewritten(second.id) == ()


def test_a_path_goes_on_in_the_form_that_it_was_gone_on_in() -> None:
    talk = Talk()
    said: tuple[Message, ...] = (user("u"),)
    for index in range(6):
        turn = talk.say(*said, reply=called(SAMPLED, f"c{index}"))
        assert turn.parent == (index - 1 if index else None)
        said = (*said, called(FIRST, f"c{index}"), tool("r", f"c{index}"))
    assert talk.session.live_leaves() == (5,)


def test_several_calls_of_one_reply_come_back_with_what_a_schema_adds() -> None:
    talk = Talk()
    parts = [call("f", '{"n":"5"}', "c1"), call("g", "", "c2")]
    talk.say(user("u"), reply=assistant("both", tool_calls=parts))
    rewritten = assistant("", tool_calls=[call("f", '{"n":5}', "c1"), call("g", '{"limit":10}', "c2")])
    turn = talk.say(user("u"), rewritten, tool("1", "c1"), tool("2", "c2"))
    assert turn.rewrite is not None
    assert turn.rewrite.kinds == (RewriteKind.KEYS_ADDED, RewriteKind.VALUES_RETYPED, RewriteKind.TEXT_LEFT_OUT)


@pytest.mark.parametrize(("first", "third"), [(SAMPLED, FIRST), (FIRST, THIRD)], ids=["as sampled", "rewritten"])
def test_a_third_form_forks_and_says_why(first: str, third: str) -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    talk.say(*going_on(first), reply="done")
    later = talk.say(*going_on(third), assistant("done"), user("v"))
    assert later.parent is None
    assert (later.why.cause, later.why.near) == (Cause.REWRITTEN_LATER, 1)
    assert later.why.would_match == "--on-rewritten-calls always"
    assert later.why.difference is not None
    assert (later.why.difference.index, later.why.difference.field) == (1, "tool_calls[0].arguments")
    again = talk.say(*going_on(SAMPLED), assistant("done"), user("w"))
    assert again.parent == 1
    assert talk.say(*going_on(first), assistant("done"), user("x")).parent == 1


def test_a_third_form_forks_deep_in_a_path_as_a_branch() -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    talk.say(*going_on(FIRST), reply=called(SAMPLED, "c2"))
    talk.say(*going_on(FIRST), *going_on(SAMPLED, call_id="c2")[1:], reply="end")
    scrubbed = talk.say(*going_on(FIRST), *going_on("{}", call_id="c2")[1:], assistant("end"), user("v"))
    assert (scrubbed.parent, scrubbed.why.cause, scrubbed.why.near) == (0, Cause.REWRITTEN_LATER, 2)


def test_a_text_that_is_scrubbed_later_forks() -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    talk.say(*going_on(SAMPLED), reply="done")
    later = talk.say(user("u"), called(text=""), tool("r", "c1"), assistant("done"), user("v"))
    assert (later.parent, later.why.cause) == (None, Cause.REWRITTEN_LATER)


@pytest.mark.parametrize("form", [SAMPLED, FIRST], ids=["as sampled", "as it came first"])
def test_another_branch_brings_the_reply_in_a_form_that_is_known(form: str) -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    talk.say(*going_on(FIRST), reply="done")
    assert talk.say(*going_on(form, "other result")).parent == 0


def test_under_always_every_form_is_the_reply() -> None:
    talk = Talk(matcher=under(OnRewrittenCalls.ALWAYS))
    talk.say(user("u"), reply=called())
    talk.say(*going_on(FIRST), reply="done")
    assert talk.say(*going_on(THIRD), assistant("done"), user("v")).parent == 1
    assert talk.session.forest.rewritten(talk.session.forest.turns[0].id) == (RewriteKind.KEYS_ADDED,)


def test_under_fork_no_rewritten_form_is_the_reply() -> None:
    talk = Talk(matcher=under(OnRewrittenCalls.FORK))
    talk.say(user("u"), reply=called())
    turn = talk.say(*going_on(FIRST))
    assert (turn.parent, turn.rewrite) == (None, None)
    assert (turn.why.cause, turn.why.would_match) == (Cause.REPLY_REWRITTEN, "--on-rewritten-calls first")


@pytest.mark.parametrize("name", ["strict", "loose_tool_call"])
def test_stricter_matchers_stay_as_they_are_and_name_the_one_that_would_match(name: str) -> None:
    talk = Talk(matcher=MATCHERS[name])
    talk.say(user("u"), reply=called())
    turn = talk.say(*going_on(FIRST))
    assert (turn.parent, turn.why.would_match) == (None, "--session-message-matcher tolerant")


def test_linear_goes_on_and_refuses_a_third_form() -> None:
    talk = Talk(Linear())
    talk.say(user("u"), reply=called())
    talk.say(*going_on(FIRST), reply="done")
    last = talk.say(*going_on(FIRST), assistant("done"), user("v"), reply="end")
    assert talk.session.live_leaves() == (last.id,)
    with pytest.raises(HistoryDivergedError) as refusal:
        talk.begin(*going_on(THIRD), assistant("done"), user("v"), assistant("end"), user("w"))
    assert refusal.value.facts["would_match"] == "--on-rewritten-calls always"
    assert refusal.value.facts["difference"]["kind"] == "other_form"
    assert "--on-rewritten-calls always would have matched" in str(refusal.value)


def test_a_turn_that_was_given_up_decides_nothing() -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    talk.session.abandon(talk.begin(*going_on(FIRST)), at=5.0)
    assert talk.say(*going_on(THIRD)).parent == 0


def test_turns_in_flight_at_one_time_keep_each_its_form() -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    both = [talk.begin(*going_on(form, form)) for form in (FIRST, THIRD)]
    one, two = (talk.commit(pending, "done") for pending in both)
    assert (one.parent, two.parent) == (0, 0)
    for form, turn in ((FIRST, one), (THIRD, two)):
        assert talk.say(*going_on(form, form), assistant("done"), user("v")).parent == turn.id
    assert talk.say(*going_on('{"a":2}'), assistant("done"), user("v")).why.cause is Cause.REWRITTEN_LATER


def test_behind_a_renamed_id_ids_prove_nothing() -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    talk.say(*going_on(SAMPLED), reply=called(SAMPLED, "c2"))
    renamed = going_on(SAMPLED, call_id="x")
    assert talk.say(*renamed, *going_on(FIRST, call_id="c2")[1:]).parent == 0
    assert talk.say(*renamed, *going_on(SAMPLED, call_id="c2")[1:]).parent == 1


def test_an_id_anywhere_else_is_carried_text() -> None:
    talk = Talk()
    talk.say(system("s"), user("u"), reply=called())
    compacted = talk.say(user("summary"), called(FIRST), tool("r", "c1"), user("go on"))
    assert (compacted.parent, compacted.carried) == (None, 1)
    other = talk.say(system("s"), user("v"), called(FIRST), tool("r", "c1"))
    assert (other.parent, other.carried) == (None, 1)


def test_an_assistant_that_the_client_gave_is_not_known_by_its_ids() -> None:
    talk = Talk()
    talk.say(user("shot"), called(), tool("r", "c1"), user("u"), reply="a")
    turn = talk.say(user("shot"), called(FIRST), tool("r", "c1"), user("u"), assistant("a"), user("v"))
    assert turn.parent is None


def test_with_other_messages_before_it_the_reply_is_not_gone_on_from() -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    assert talk.say(user("U"), called(FIRST), tool("r", "c1")).parent is None


def test_a_retry_has_the_parent_and_the_digest_of_what_it_repeats() -> None:
    talk = Talk()
    talk.say(user("u"), reply=called())
    digests: set[str] = set()
    for _ in range(2):
        query = build_query(ask(*going_on(FIRST)))
        assert talk.session.find_parent(query) == 0
        digests.add(digest_request(query, {}))
        talk.say(*going_on(FIRST), reply="done")
    assert len(digests) == 1


def test_folding_the_events_gives_the_accepted_form_again() -> None:
    talk = Talk(matcher=replace(TOLERANT, replies=ReplyRules(thinking_tags=("<t>", "</t>"))))
    talk.say(user("u"), reply={**called(), "reasoning_content": "why"})
    talk.say(*going_on(FIRST), reply="done")
    folded = fold(talk.session.events)
    assert folded.matcher == talk.session.matcher
    assert folded.forest.rewritten(folded.forest.turns[0].id) == (RewriteKind.KEYS_ADDED,)
    for session in (folded, talk.session):
        known, third = going_on(FIRST), going_on(THIRD)
        assert session.find_parent(build_query(ask(*known, assistant("done")))) == 1
        assert session.find_parent(build_query(ask(*third, assistant("done")))) is None
        dressed = called(FIRST, text="<t>why</t>do")
        assert session.find_parent(build_query(ask(user("u"), dressed, tool("r", "c1"), assistant("done")))) == 1


def test_a_form_that_differs_from_the_stored_one_in_white_space_alone_decides_as_the_stored_one() -> None:
    talk = Talk(Tree())
    talk.say(user("u"), reply=called(text="do\n"))
    trimmed = talk.say(user("u"), called(), tool("r", "c1"), reply="done")
    assert trimmed.rewrite is not None
    assert (trimmed.rewrite.form, trimmed.rewrite.kinds) == ("", (RewriteKind.TEXT_TRIMMED,))
    talk.say(user("u"), called(text="do\n"), tool("r", "c1"), reply="done")
    assert talk.session.forest.rewritten(talk.session.forest.turns[0].id) == (RewriteKind.TEXT_TRIMMED,)
    assert talk.say(*going_on(FIRST)).why.cause is Cause.REWRITTEN_LATER
