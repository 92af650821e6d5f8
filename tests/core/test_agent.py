"""Harness headers: who speaks.

1. Each known harness tells its sub-agents from its main agent.
2. A root that a sub-agent starts is said to be that; where it attaches is not changed by any header.
"""

import pytest

from sessionkit import Talk, assistant, system, user
from turnkeeper.core import Cause
from turnkeeper.core.agent import find_sub_agent


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
