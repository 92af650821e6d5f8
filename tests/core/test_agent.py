"""Harness headers: who speaks.

1. Each known harness tells its sub-agents from its main agent.
2. A root that a sub-agent starts is said to be that; where it attaches is not changed by any header.
3. Turns of different agents are never retries of each other: neither superseded nor parallel. A turn without a header
   is the main agent's.
"""

from typing import Any

import pytest

from sessionkit import Talk, assistant, system, user
from turnkeeper.core import Cause, Label, Turn
from turnkeeper.core.agent import find_sub_agent
from turnkeeper.jsontypes import JsonObject


@pytest.mark.parametrize(
    ("headers", "agent"),
    [
        pytest.param({}, None, id="no headers"),
        pytest.param({"x-claude-code-session-id": "s"}, None, id="Claude Code, main"),
        pytest.param(
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "a", id="Claude Code, sub-agent"
        ),
        pytest.param({"session-id": "s", "thread-id": "s"}, None, id="Codex, main"),
        pytest.param({"session-id": "s", "thread-id": "t"}, "t", id="Codex, another thread"),
        pytest.param({"thread-id": "t"}, None, id="a thread of nothing"),
        pytest.param({"x-session-id": "s", "x-session-affinity": "s"}, None, id="opencode, main"),
        pytest.param({"x-session-id": "t", "x-parent-session-id": "s"}, "t", id="opencode, sub-agent"),
        pytest.param({"x-parent-session-id": "s"}, "unnamed", id="only a parent"),
        pytest.param({"x-claude-code-agent-id": ""}, None, id="empty"),
    ],
)
def test_a_sub_agent_is_found_by_its_headers(headers: dict[str, str], agent: str | None) -> None:
    assert find_sub_agent(headers) == agent


SUB = {"x-claude-code-agent-id": "a7"}


def test_a_root_that_a_sub_agent_starts_says_so() -> None:
    talk = Talk()
    talk.say(system("main"), user("u"), reply="a")
    started = talk.say(system("explore"), user("go"), headers=SUB)
    assert (started.why.cause, started.why.agent) == (Cause.SUB_AGENT, "a7")
    assert started.why.describe().startswith("sub agent a7 (compared with turn 0)")
    assert started.why.to_json()["agent"] == "a7"
    goes_on = talk.say(system("explore"), user("go"), assistant("ok"), user("more"), headers=SUB)
    assert (goes_on.parent, goes_on.why.agent) == (started.id, "")


def test_a_sub_agents_turn_that_lost_its_reply_is_still_explained_by_that() -> None:
    talk = Talk()
    talk.say(user("u"), reply="a", headers=SUB)
    lost = talk.say(user("u"), assistant("b"), user("v"), headers=SUB)
    assert (lost.why.cause, lost.why.agent) == (Cause.REPLY_REWRITTEN, "a7")
    assert talk.session.forest.get(lost.id).parent is None


OTHER = {"x-claude-code-agent-id": "b8"}


def label(talk: Talk, *turns: Turn) -> list[Label]:
    return [talk.session.forest.label(turn.id) for turn in turns]


@pytest.mark.parametrize(
    ("first", "second", "labels"),
    [
        pytest.param(SUB, SUB, [Label.SUPERSEDED, Label.ROOT], id="one sub-agent"),
        pytest.param({}, {}, [Label.SUPERSEDED, Label.ROOT], id="the main agent"),
        pytest.param({"x-session-id": "s"}, {}, [Label.SUPERSEDED, Label.ROOT], id="the main agent, named once"),
        pytest.param({}, SUB, [Label.ROOT, Label.ROOT], id="the main agent, then a sub-agent"),
        pytest.param(SUB, {}, [Label.ROOT, Label.ROOT], id="a sub-agent, then the main agent"),
        pytest.param(SUB, OTHER, [Label.ROOT, Label.ROOT], id="two sub-agents"),
        pytest.param(
            {"session-id": "s", "thread-id": "t"},
            {"session-id": "s", "thread-id": "u"},
            [Label.ROOT, Label.ROOT],
            id="two threads",
        ),
    ],
)
def test_only_one_agents_turns_are_retries_of_each_other(
    first: dict[str, str], second: dict[str, str], labels: list[Label]
) -> None:
    talk = Talk()
    turns = [talk.say(user("go"), headers=first), talk.say(user("go"), headers=second)]
    assert label(talk, *turns) == labels
    assert turns[0].agent == find_sub_agent(first)


def test_equal_turns_of_two_agents_in_flight_at_once_are_not_parallel_samples() -> None:
    talk = Talk()
    begun = [talk.begin(user("go"), headers=headers) for headers in ({}, SUB, SUB)]
    turns = [talk.commit(each, "ok") for each in begun]
    assert label(talk, *turns) == [Label.ROOT, Label.PARALLEL, Label.PARALLEL]


def test_two_agents_may_go_on_from_one_turn_with_equal_words() -> None:
    talk = Talk()
    talk.say(user("go"), reply="a")
    said = (user("go"), assistant("a"), user("more"))
    turns = [talk.say(*said), talk.say(*said, headers=SUB)]
    assert label(talk, *turns) == [Label.EXTENSION, Label.BRANCH]


def test_a_root_that_repeats_another_agents_is_the_start_of_a_sub_agent() -> None:
    talk = Talk()
    talk.say(user("go"))
    started, again = talk.say(user("go"), headers=SUB), talk.say(user("go"), headers=SUB)
    assert (started.why.cause, started.why.agent) == (Cause.SUB_AGENT, "a7")
    assert again.why.cause is Cause.REPEATED
    assert talk.say(user("go")).why.cause is Cause.REPEATED


TOOL: JsonObject = {"type": "function", "function": {"name": "look"}}
STARTS: dict[str, dict[str, Any]] = {
    "another task under the same instructions": {"messages": (system("main"), user("context"), user("explore"))},
    "another context under the same instructions": {"messages": (system("main"), user("other"), user("explore"))},
    "other instructions": {"messages": (system("explore"), user("context"), user("go"))},
    "the same with other tools": {"messages": (system("main"), user("context"), user("go")), "tools": (TOOL,)},
    "the whole conversation with other tools": {
        "messages": (system("main"), user("context"), user("go"), assistant("a"), user("explore")),
        "tools": (TOOL,),
    },
    "the conversation with another reply": {
        "messages": (system("main"), user("context"), user("go"), assistant("b"), user("explore"))
    },
    "the conversation without its reply": {"messages": (system("main"), user("context"), user("go"), user("explore"))},
    "the beginning of the conversation": {"messages": (system("main"), user("context"))},
    "a summary of the conversation": {"messages": (system("main"), user("summary"), assistant("a"), user("explore"))},
    "the same conversation": {"messages": (system("main"), user("context"), user("go"))},
}


@pytest.mark.parametrize("name", STARTS)
def test_whatever_a_sub_agents_first_root_begins_with_it_is_its_start(name: str) -> None:
    talk = Talk()
    talk.say(system("main"), user("context"), user("go"), reply="a")
    messages, more = STARTS[name]["messages"], {key: value for key, value in STARTS[name].items() if key != "messages"}
    started = talk.say(*messages, headers=SUB, **more)
    assert (started.parent, started.why.cause, started.why.agent) == (None, Cause.SUB_AGENT, "a7")


def test_a_later_root_of_a_sub_agent_says_what_it_is() -> None:
    """Its compaction, though it comes as near to the main agent's conversation as to its own."""
    talk = Talk()
    talk.say(system("main"), user("context"), user("go"), reply="a")
    talk.say(system("main"), user("context"), user("explore"), reply="found", headers=SUB)
    later = talk.say(system("main"), user("context"), user("summary"), assistant("found"), user("go"), headers=SUB)
    assert (later.parent, later.why.cause, later.why.agent) == (None, Cause.COMPACTED, "a7")


def test_the_first_turn_of_a_session_is_that_whoever_asks() -> None:
    talk = Talk()
    assert talk.say(user("go"), headers=SUB).why.cause is Cause.FIRST
