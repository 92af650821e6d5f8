"""The agent-facing APIs."""

from turnkeeper.http.dialects.chat import CHAT
from turnkeeper.http.dialects.dialect import AgentCall, Dialect, ParseContext, ReplyStream, StreamStart

DIALECTS: tuple[Dialect, ...] = (CHAT,)
"""Every dialect that is served."""

__all__ = ["CHAT", "DIALECTS", "AgentCall", "Dialect", "ParseContext", "ReplyStream", "StreamStart"]
