"""The agent-facing APIs."""

from turnkeeper.http.dialects.chat import CHAT
from turnkeeper.http.dialects.dialect import AgentCall, Dialect, ParseContext, ReplyStream, StreamStart
from turnkeeper.http.dialects.messages import MESSAGES
from turnkeeper.http.dialects.responses import RESPONSES

DIALECTS: tuple[Dialect, ...] = (CHAT, MESSAGES, RESPONSES)
"""Every dialect that is served."""

__all__ = [
    "CHAT",
    "DIALECTS",
    "MESSAGES",
    "RESPONSES",
    "AgentCall",
    "Dialect",
    "ParseContext",
    "ReplyStream",
    "StreamStart",
]
