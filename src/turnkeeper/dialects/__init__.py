"""The APIs that agents speak, as pure translations between JSON bodies, canonical requests and replies.

A dialect needs no server: it reads a body into a `TurnRequest` and writes an `AgentReply` as a body or as server-sent
events. What all of them share stands beside them: JSON bodies, the fields of a request, the framing of events.
"""

from turnkeeper.dialects.chat import CHAT
from turnkeeper.dialects.dialect import AgentCall, Dialect, ParseContext, ReplyStream, StreamStart
from turnkeeper.dialects.jsonbody import parse_object
from turnkeeper.dialects.messages import MESSAGES
from turnkeeper.dialects.reply import AgentReply, build_reply
from turnkeeper.dialects.responses import RESPONSES
from turnkeeper.dialects.sse import Event, parse_events

DIALECTS: tuple[Dialect, ...] = (CHAT, MESSAGES, RESPONSES)
"""The dialects that the server speaks."""

__all__ = [
    "CHAT",
    "DIALECTS",
    "MESSAGES",
    "RESPONSES",
    "AgentCall",
    "AgentReply",
    "Dialect",
    "Event",
    "ParseContext",
    "ReplyStream",
    "StreamStart",
    "build_reply",
    "parse_events",
    "parse_object",
]
