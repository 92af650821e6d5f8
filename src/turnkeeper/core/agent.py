"""Which agent of a harness speaks, by the headers that harnesses send.

Turns of different agents are never retries of each other. Where a turn attaches is never asked of a header.
"""

from collections.abc import Mapping
from enum import StrEnum


class HeaderRole(StrEnum):
    """The things that headers of a harness name."""

    AGENT = "agent"
    """A sub-agent, by its own id; only sub-agents send it."""
    CONVERSATION = "conversation"
    """The conversation of the main agent, or a sub-agent's own where the harness gives it one."""
    PARENT = "parent"
    """The conversation that started a sub-agent; only sub-agents send it."""
    THREAD = "thread"
    """A thread: equal to the conversation for the main agent, another for the rest."""


HARNESS_HEADERS: Mapping[str, HeaderRole] = {
    "x-claude-code-session-id": HeaderRole.CONVERSATION,
    "x-claude-code-agent-id": HeaderRole.AGENT,
    "session-id": HeaderRole.CONVERSATION,
    "thread-id": HeaderRole.THREAD,
    "x-session-id": HeaderRole.CONVERSATION,
    "x-session-affinity": HeaderRole.CONVERSATION,
    "x-parent-session-id": HeaderRole.PARENT,
}
"""The headers by which known harnesses name an agent and its conversation; of several with one role the first counts.
They are kept with a turn for its label."""


def find_sub_agent(headers: Mapping[str, str]) -> str | None:
    """Find the id of the sub-agent that speaks; None for a main agent, and where no header tells.

    Args:
        headers: a request's, names in lower case.
    """
    if not headers:
        return None
    agent = _first(headers, HeaderRole.AGENT)
    if agent:
        return agent
    conversation, thread = _first(headers, HeaderRole.CONVERSATION), _first(headers, HeaderRole.THREAD)
    if _first(headers, HeaderRole.PARENT):
        return conversation or "unnamed"
    return thread if thread and conversation and thread != conversation else None


_NAMES: Mapping[HeaderRole, tuple[str, ...]] = {
    role: tuple(name for name, found in HARNESS_HEADERS.items() if found is role) for role in HeaderRole
}


def _first(headers: Mapping[str, str], role: HeaderRole) -> str:
    return next((headers[name] for name in _NAMES[role] if headers.get(name)), "")
