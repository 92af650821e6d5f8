"""Explanations in sentences.

1. A fork says what it does, why, where the first difference is, and what would have matched or what else helps.
2. Its cost is counted: what was rendered, what would have been kept, what stands in two samples, what trains in none,
   what trains twice.
3. A turn in flight says what it waits for; sampled tokens that do not train say why.
4. Names that only a newer server knows are shown as they are.
"""

from dataclasses import replace

import pytest

from core.history.test_explain import CASES, Case
from samples.builders import TREE, Story
from sessionkit import Talk, user
from turnkeeper.core import Cause, Session, Tree, Turn
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import Outcome, describe_turn, show_outcome, view_session
from turnkeeper.views import SessionExplanation, ShownSession, explain_session
from turnkeeper.views.advice import CAUSES
from turnkeeper.views.explain import Fork
from turnkeeper.views.session import ShownToken, TurnContent, read_session
from viewkit import tell_story


def describe(session: Session) -> JsonObject:
    view = view_session(session)
    turns = [describe_turn(view, turn.id) for turn in view.turns]
    return {"turnkeeper": {"history": str(view.history), "turns": turns}}


def show(session: Session, outcome: Outcome | None = None) -> ShownSession:
    metadata = describe(session)
    if outcome is not None:
        metadata = show_outcome(metadata, outcome.ledger, outcome.dropped_leaves, outcome.turn_ledgers)
    return read_session("s", metadata, {})


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_a_fork_says_why_and_what_helps(case: Case) -> None:
    talk = Talk(Tree(), matcher=case.matcher)
    talk.say(*case.first, reply=case.reply)
    turn = talk.say(*case.request, **case.fields)
    (fork,) = explain_session(show(talk.session)).forks
    assert fork.turn.id == turn.id
    assert fork.reason.startswith(f"Turn {turn.id} ")
    expected = CAUSES[case.cause].says.replace("{near}", f"turn {turn.why.near}")
    assert f": {expected}." in fork.reason
    if turn.why.difference is not None:
        assert f"Message {turn.why.difference.index}, {turn.why.difference.field}: stored " in fork.reason
    helps = f"{case.would_match} would have matched" if case.would_match else CAUSES[case.cause].heals
    assert fork.heals == helps
    assert fork.to_json()["setting"] == (case.would_match or None)


def test_an_extension_is_no_fork() -> None:
    story = Story(TREE)
    first = story.say([1, 2], [11])
    story.say([3], [12], after=first)
    explanation = explain_session(show(story.session))
    assert explanation.forks == ()
    assert explanation.summary == ("tree history, 2 turns on 1 path", "nothing forked")


def tell_branch(story: Story) -> Turn:
    """0 (3+2) with the children 1 (1+3) and 2 (2+1), both of them kept."""
    first = story.say([1, 2, 3], [11, 12])
    story.say([4], [13, 14, 15], after=first)
    return story.say([5, 6], [16], after=first, headers={"x-claude-code-agent-id": "sub"}, cached_tokens=4)


def test_the_cost_of_a_branch_of_which_both_sides_are_kept() -> None:
    story = Story(TREE)
    turn = tell_branch(story)
    (fork,) = explain_session(show(story.session, story.forecast())).forks
    assert (fork.turn.id, fork.turn.parent, fork.turn.near) == (turn.id, 0, 1)
    cost = fork.cost
    assert (cost.rendered, cost.cached, cost.repeated, cost.untrained, cost.trained_twice) == (2, 4, 5, {}, 0)
    assert cost.kept == 0  # another question: it would never have gone on from turn 1
    assert cost.describe() == (
        "2 prompt tokens rendered anew (4 of the whole prompt from the engine's prefix cache); "
        "5 tokens before the fork in two samples"
    )


def test_the_cost_of_a_retry_is_what_it_supersedes() -> None:
    story = Story(TREE)
    first = story.say([1, 2, 3], [11, 12])
    story.say([4], [13, 14, 15], after=first, text="same")
    story.say([4], [16], after=first, text="same")
    (fork,) = explain_session(show(story.session, story.forecast())).forks
    assert fork.reason == "Turn 2 stands beside turn 1: it asks the same."
    assert (fork.cost.rendered, fork.cost.kept, fork.cost.repeated) == (1, 4, 0)
    assert fork.cost.untrained == {"superseded": 3}
    assert "3 sampled tokens of the other side not trained (3 superseded)" in fork.cost.describe()


def test_tokens_that_train_in_two_samples_are_counted() -> None:
    story = Story(TREE)
    tell_branch(story)
    session = show(story.session, story.forecast())
    token = ShownToken(id=11, logprob=0.0, version=None, trained=2, masked="")
    content = TurnContent(told=(), text="", tokens=(token, replace(token, trained=1)))
    turns = (replace(session.turns[0], content=content), *session.turns[1:])
    (fork,) = explain_session(replace(session, turns=turns)).forks
    assert fork.cost.trained_twice == 1
    assert "1 sampled token trained more than once" in fork.cost.describe()


async def explain_story() -> SessionExplanation:
    return explain_session(await (await tell_story()).read())


async def test_a_whole_story_is_explained() -> None:
    explanation = await explain_story()
    assert [wait.says for wait in explanation.waits] == [
        "A request behind turn 2 has been in flight for 4 min 0 s, for 4 min 0 s in phase engine: an engine has the "
        "call (http://engine).",
        "A first prompt has been in flight for 3 min 20 s, for 3 min 20 s in phase gate: it waits at the gate: the "
        "engines are paused, or none of them serves.",
    ]
    assert "--engine-timeout" in explanation.waits[0].heals
    causes = [(fork.turn.id, fork.turn.cause, fork.turn.near) for fork in explanation.forks]
    assert causes == [(2, Cause.REPEATED, 1), (3, Cause.REPLY_REWRITTEN, 0), (4, Cause.SYSTEM_CHANGED, 3)]
    assert [(loss.reason, loss.tokens) for loss in explanation.losses] == [("superseded", 2)]
    assert explanation.summary[1] == "21 of 23 sampled tokens train"


async def test_the_cost_of_a_root_is_what_it_would_have_kept() -> None:
    told = await tell_story()
    forest = told.kit.look(told.session_id).forest
    rewritten: Fork = explain_session(await told.read()).forks[1]
    root, near = forest.turns[3], forest.turns[0]
    assert rewritten.cost.rendered == len(root.prompt.ids) == root.completion_span.start
    assert rewritten.cost.kept == near.path_tokens
    assert (rewritten.cost.repeated, rewritten.cost.untrained) == (0, {})


async def test_names_of_a_newer_server_are_shown_as_they_are() -> None:
    session = await (await tell_story()).read()
    turns = (*session.turns[:3], replace(session.turns[3], cause="moon_phase", near=None), session.turns[4])
    odd = replace(
        session, turns=turns, in_flight=({"phase": "dreaming"},), accounting={"sampled": 3, "dropped": {"eaten": 3}}
    )
    explanation = explain_session(odd)
    assert explanation.forks[1].reason.startswith("Turn 3 starts a root of its own: moon phase. Message 2")
    assert "in phase dreaming: dreaming." in explanation.waits[0].says
    assert explanation.losses[0].says == "eaten"


def test_a_session_without_turns_is_explained_as_well() -> None:
    explanation = explain_session(show(Talk(Tree()).session))
    assert explanation.summary == ("tree history, 0 turns on 0 paths",)
    assert explanation.to_json()["forks"] == []


def test_a_closed_session_says_so() -> None:
    session = show(Talk(Tree()).session)
    assert (
        "takes no further turns: all turns were aborted"
        in explain_session(replace(session, closed="all turns were aborted")).summary[0]
    )


def test_ids_that_differ_from_messages_are_said() -> None:
    talk = Talk(Tree())
    talk.say(user("u"))
    session = replace(show(talk.session), mismatches=2)
    assert "say something else than its messages in 2 places:" in explain_session(session).summary[-1]
    assert "in 1 place:" in explain_session(replace(session, mismatches=1)).summary[-1]
