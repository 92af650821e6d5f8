"""What tests of dialects share: a context, replies, and messages of every kind."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from turnkeeper.core.tokens import freeze_ids
from turnkeeper.dialects import AgentReply, ParseContext, StreamStart
from turnkeeper.jsontypes import JsonObject

CONTEXT = ParseContext(decode_token=lambda token_id: f"<{token_id}>")
START = StreamStart(response_id="id_0123", created_s=11, prompt_tokens=10)


def call(call_id: str, name: str, arguments: str) -> JsonObject:
    """A tool call as sessions store it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = [call("c0", "f", '{"a":  1.0}'), call("c1", "g", "{}")]

MESSAGES: dict[str, JsonObject] = {
    "text": {"role": "assistant", "content": "text"},
    "nothing": {"role": "assistant", "content": ""},
    "thinking only": {"role": "assistant", "content": "", "reasoning_content": "why"},
    "calls only": {"role": "assistant", "content": "", "tool_calls": CALLS},
    "no calls in a list": {"role": "assistant", "content": "text", "tool_calls": []},
    "everything": {"role": "assistant", "content": "text", "reasoning_content": "why", "tool_calls": CALLS},
    "broken arguments": {"role": "assistant", "content": "", "tool_calls": [call("c", "f", '{"a": ')]},
    "repeated key": {"role": "assistant", "content": "", "tool_calls": [call("c", "f", '{"a": 1, "a": 2}')]},
    "half a pair": {"role": "assistant", "content": "", "tool_calls": [call("c", "f", '{"a": "\\ud83d"}')]},
    "no arguments": {"role": "assistant", "content": "", "tool_calls": [call("c", "f", "")]},
}
"""Assistant messages as engines give them."""


def make_reply(message: JsonObject, finish_reason: str = "stop", **changes: Any) -> AgentReply:
    """The reply that delivers a message: 10 prompt tokens, 4 of them cached, 2 sampled."""
    sound: dict[str, Any] = {
        "response_id": START.response_id,
        "created_s": 12,
        "message": message,
        "finish_reason": finish_reason,
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "cached_tokens": 4,
        "ids": freeze_ids([7, 8]),
        "logprobs": np.array([-0.5, -0.25]),
    }
    return AgentReply(**{**sound, **changes})


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
"""JSON values."""
