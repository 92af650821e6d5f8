"""The client of a session server."""

from turnkeeper.client.client import SessionClient, SessionHandle

__all__ = ["SessionClient", "SessionHandle"]
