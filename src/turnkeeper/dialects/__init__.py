"""The agent-facing APIs."""

from turnkeeper.dialects.chat import CHAT
from turnkeeper.dialects.dialect import AgentCall, Dialect, ParseContext, ReplyStream, StreamStart
from turnkeeper.dialects.messages import MESSAGES
from turnkeeper.dialects.responses import RESPONSES

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
