"""A reply as Anthropic's events.

::

    message_start, (content_block_start, content_block_delta ..., content_block_stop) ..., message_delta, message_stop

Each block has its own type and index; ``ping`` may stand anywhere behind the start; an ``error`` event ends all.
"""

from typing import Any

from turnkeeper.dialects.dialect import StreamStart
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.messages.error import render_error
from turnkeeper.dialects.messages.reply import build_usage, describe_stop, open_call, open_message
from turnkeeper.dialects.opaque_reasoning import sign_thinking
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.sent_text import GrowingText, SentText
from turnkeeper.dialects.sse import encode_text_event
from turnkeeper.dialects.tool_calls import UNPARSED_KEY, parse_arguments
from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import JsonObject

THINKING, TEXT = "thinking", "text"


class MessagesStream:
    """The state of one stream: which block is open, and which texts were sent."""

    def __init__(self, start: StreamStart, model: str) -> None:
        self._start = start
        self._model = model
        self._sent = SentText()
        self._is_started = False
        self._open: str | None = None
        self._text_so_far = GrowingText()
        """The text of the open block, which the signature of a thinking block covers."""
        self._blocks = 0

    def heartbeat(self) -> bytes:
        """Send ``message_start`` at first, and a ``ping`` afterwards."""
        return self._event("ping") if self._is_started else self._begin()

    def extend(self, *, reasoning: str, content: str) -> bytes:
        """Send a delta for each text that is not empty."""
        self._sent.add(reasoning=reasoning, content=content)
        return self._begin() + self._add_text(THINKING, reasoning) + self._add_text(TEXT, content)

    def finish(self, reply: AgentReply) -> bytes:
        """Send the rest of the blocks, ``message_delta`` with the stop reason and full usage, and ``message_stop``."""
        rest = self._sent.get_unsent(reply.message)
        calls = reply.message.get("tool_calls") or ()
        parts = [self._begin(), self._add_text(THINKING, rest.reasoning), self._add_text(TEXT, rest.content)]
        if not self._blocks and not calls:
            parts.append(self._open_block(TEXT, {"type": "text", "text": ""}))
        parts.append(self._close_block())
        parts += [self._render_call(call) for call in calls]
        usage = build_usage(
            prompt_tokens=reply.prompt_tokens,
            cached_tokens=reply.cached_tokens,
            output_tokens=reply.completion_tokens,
        )
        parts += [self._event("message_delta", delta=describe_stop(reply), usage=usage), self._event("message_stop")]
        return b"".join(parts)

    def fail(self, error: TurnkeeperError) -> bytes:
        """Send the ``error`` event."""
        return encode_text_event(render_error(error), "error")

    def _begin(self) -> bytes:
        if self._is_started:
            return b""
        self._is_started = True
        usage = build_usage(prompt_tokens=self._start.prompt_tokens, cached_tokens=0, output_tokens=0)
        opened = open_message(self._start.response_id, self._model)
        message: JsonObject = {**opened, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return self._event("message_start", message=message)

    def _add_text(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        opening = b""
        if self._open != kind:
            empty = {"thinking": "", "signature": ""} if kind == THINKING else {"text": ""}
            opening = self._close_block() + self._open_block(kind, {"type": kind, **empty})
        if kind == THINKING:
            self._text_so_far.add(text)
        return opening + self._delta({"type": f"{kind}_delta", kind: text})

    def _render_call(self, call: JsonObject) -> bytes:
        arguments: str = call["function"]["arguments"]
        spelled = parse_arguments(arguments)
        # What spells an object goes out as it was sampled; everything else in the object that stands for it.
        text = encode_json(spelled).decode() if UNPARSED_KEY in spelled or not arguments else arguments
        return (
            self._open_block("tool_use", open_call(call))
            + self._delta({"type": "input_json_delta", "partial_json": text})
            + self._close_block()
        )

    def _open_block(self, kind: str, block: JsonObject) -> bytes:
        self._open, self._text_so_far = kind, GrowingText()
        self._blocks += 1
        return self._event("content_block_start", index=self._blocks - 1, content_block=block)

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open == THINKING:
            signature = self._delta({"type": "signature_delta", "signature": sign_thinking(str(self._text_so_far))})
        self._open = None
        return signature + self._event("content_block_stop", index=self._blocks - 1)

    def _delta(self, delta: JsonObject) -> bytes:
        return self._event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _event(self, kind: str, **members: Any) -> bytes:
        return encode_text_event(encode_json({"type": kind, **members}), kind)
