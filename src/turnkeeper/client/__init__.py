"""The client of a session server."""

from turnkeeper.client.client import AgentClient, SessionClient, SessionHandle

__all__ = ["AgentClient", "SessionClient", "SessionHandle"]
