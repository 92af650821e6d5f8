"""The agent-facing APIs."""

from turnkeeper.http.dialects.chat import CHAT
from turnkeeper.http.dialects.dialect import AgentCall, Dialect, ParseContext, ReplyStream, StreamStart
from turnkeeper.http.dialects.messages import MESSAGES

DIALECTS: tuple[Dialect, ...] = (CHAT, MESSAGES)
"""Every dialect that is served."""

__all__ = ["CHAT", "DIALECTS", "MESSAGES", "AgentCall", "Dialect", "ParseContext", "ReplyStream", "StreamStart"]
