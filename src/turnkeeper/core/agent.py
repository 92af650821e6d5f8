"""Which agent of a harness speaks, by the headers that harnesses send.

Turns of different agents are never retries of each other. Where a turn attaches is never asked of a header.
"""

from collections.abc import Mapping

AGENT_HEADERS = ("x-claude-code-agent-id",)
"""Sent by sub-agents only: their own id."""
CONVERSATION_HEADERS = ("x-claude-code-session-id", "session-id", "x-session-id", "x-session-affinity")
"""The conversation of the main agent, or a sub-agent's own where the harness gives it one."""
PARENT_HEADERS = ("x-parent-session-id",)
"""Sent by sub-agents only: the conversation that started them."""
THREAD_HEADERS = ("thread-id",)
"""Equal to the conversation for the main agent, another for the rest."""


def find_sub_agent(headers: Mapping[str, str]) -> str | None:
    """The id under which a sub-agent speaks; None for a main agent, or where no header tells.

    Args:
        headers: a request's, names in lower case.
    """
    agent = _first(headers, AGENT_HEADERS)
    if agent:
        return agent
    conversation, thread = _first(headers, CONVERSATION_HEADERS), _first(headers, THREAD_HEADERS)
    if _first(headers, PARENT_HEADERS):
        return conversation or "unnamed"
    return thread if thread and conversation and thread != conversation else None


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")
