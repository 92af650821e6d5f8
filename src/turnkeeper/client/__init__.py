"""The client of a session server, and what a trainer reads with it."""

from turnkeeper.client.client import AgentClient, SessionClient, SessionOptions
from turnkeeper.client.handle import SessionHandle
from turnkeeper.client.payloads import StoredPayload, read_payloads, write_payload
from turnkeeper.client.retry import NO_RETRY, Retry
from turnkeeper.client.sync import SyncAgentClient, SyncSessionClient, SyncSessionHandle

__all__ = [
    "NO_RETRY",
    "AgentClient",
    "Retry",
    "SessionClient",
    "SessionHandle",
    "SessionOptions",
    "StoredPayload",
    "SyncAgentClient",
    "SyncSessionClient",
    "SyncSessionHandle",
    "read_payloads",
    "write_payload",
]
