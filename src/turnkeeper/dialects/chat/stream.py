"""A reply as chunks of a chat completion.

::

    role, (reasoning or content) ..., tool calls, finish reason, usage where it is asked for, [DONE]

Log-probabilities and tool calls come only with the finished reply: they are known when the engine's call has ended.
"""

from turnkeeper.dialects.chat.reply import ChatReplyForm, build_usage, choose_finish_reason
from turnkeeper.dialects.dialect import StreamStart
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.openai import build_error
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.sent_text import SentText
from turnkeeper.dialects.sse import encode_event, encode_text_event
from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import JsonObject


class ChatStream:
    """A reply as ``chat.completion.chunk`` events: the role once, tool calls whole, usage on request."""

    def __init__(self, start: StreamStart, form: ChatReplyForm) -> None:
        self._start = start
        self._form = form
        self._sent = SentText()
        self._is_open = False

    def heartbeat(self) -> bytes:
        """Send the role at first, and a delta without content afterwards."""
        return self._chunk({}) if self._is_open else self._open()

    def extend(self, *, reasoning: str, content: str) -> bytes:
        """Send a delta for each text that is not empty."""
        self._sent.add(reasoning=reasoning, content=content)
        return self._open() + self._render_texts(reasoning, content)

    def finish(self, reply: AgentReply) -> bytes:
        """Send the deltas that are left, the finish reason, the usage where it is wanted, and ``[DONE]``."""
        rest = self._sent.get_unsent(reply.message)
        parts = [self._open(), self._render_texts(rest.reasoning, rest.content)]
        for index, call in enumerate(reply.message.get("tool_calls") or ()):
            parts.append(self._chunk({"tool_calls": [{**call, "index": index}]}))
        end = choose_finish_reason(reply)
        parts.append(self._chunk({}, finish_reason=end, logprobs=self._form.build_logprobs(reply)))
        if self._form.wants_usage:
            parts.append(encode_event(self._frame([]) | {"usage": build_usage(reply)}))
        parts.append(encode_text_event(b"[DONE]"))
        return b"".join(parts)

    def fail(self, error: TurnkeeperError) -> bytes:
        """Send an error object in place of a chunk; ``[DONE]`` does not follow, since the reply is not complete."""
        return encode_text_event(encode_json(build_error(error)))

    def _open(self) -> bytes:
        """Send the role, unless it was sent before."""
        if self._is_open:
            return b""
        self._is_open = True
        return self._chunk({"role": "assistant", "content": ""})

    def _render_texts(self, reasoning: str, content: str) -> bytes:
        deltas = ({"reasoning_content": reasoning} if reasoning else {}, {"content": content} if content else {})
        return b"".join(self._chunk(delta) for delta in deltas if delta)

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None, logprobs: JsonObject | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return encode_text_event(encode_json(self._frame([choice])))

    def _frame(self, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self._start.response_id,
            "object": "chat.completion.chunk",
            "created": self._start.created_s,
            "model": self._form.model,
            "choices": choices,
        }
