"""A chat completion as a stream of chunks.

::

    role -> (reasoning | content | tool call | logprobs)* -> finish reason -> usage, if asked for

Text is given out as far as no later token can change how it reads: the beginning of a stop text or a marker waits,
and a tool call comes whole.
"""

from collections.abc import Iterator

from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import ReplyDelta
from turnkeeper.tiny.codec import ChatCodec
from turnkeeper.tiny.scheduler import Delta, OutputTokens, Result, Update, Vocabulary
from turnkeeper.tiny.server.chat import (
    TinyChatCall,
    count_usage,
    encode_choice_logprobs,
    encode_tool_calls,
    name_finish,
)
from turnkeeper.tiny.wire import number_calls


class ChunkWriter:
    """Writes the chunks of one reply."""

    def __init__(self, call: TinyChatCall, codec: ChatCodec, texts: Vocabulary) -> None:
        self._call = call
        self._texts = texts
        self._reader = codec.new_reader(has_tools=call.has_tools, has_reasoning=call.is_reasoning_separate)
        self._calls = 0
        self._is_begun = False

    def write(self, update: Update) -> Iterator[JsonObject]:
        """Write the chunks of what the engine told; those of the result end the stream."""
        if not self._is_begun:
            self._is_begun = True
            yield self._chunk({"role": "assistant", "content": ""})
        if isinstance(update, Delta):
            yield from self._write_tokens(self._reader.feed(update.text), update.tokens)
            return
        yield from self._write_tokens(self._reader.feed(update.rest), update.rest_tokens)
        yield from self._write_tokens(self._reader.finish(), OutputTokens())
        yield self._end(update)
        if self._call.has_usage_chunk:
            yield {**self._envelope(), "choices": [], "usage": count_usage(update)}

    def _write_tokens(self, delta: ReplyDelta, tokens: OutputTokens) -> Iterator[JsonObject]:
        members = self._encode(delta)
        logprobs = encode_choice_logprobs(tokens, self._texts) if self._call.meta.has_logprobs and tokens.ids else None
        if members or logprobs is not None:
            yield self._chunk(members, logprobs=logprobs)

    def _encode(self, delta: ReplyDelta) -> JsonObject:
        members: JsonObject = {}
        if delta.reasoning:
            members["reasoning_content"] = delta.reasoning
        if delta.content:
            members["content"] = delta.content
        if delta.tool_calls:
            members["tool_calls"] = number_calls(encode_tool_calls(delta.tool_calls), self._calls)
            self._calls += len(delta.tool_calls)
        return members

    def _end(self, result: Result) -> JsonObject:
        reason = name_finish(result, has_calls=self._calls > 0)
        return self._chunk({}, finish_reason=reason, matched_stop=result.finish.matched)

    def _chunk(
        self,
        delta: JsonObject,
        *,
        logprobs: JsonObject | None = None,
        finish_reason: str | None = None,
        matched_stop: int | str | None = None,
    ) -> JsonObject:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            "matched_stop": matched_stop,
        }
        return {**self._envelope(), "choices": [choice], "usage": None}

    def _envelope(self) -> JsonObject:
        call = self._call
        return {
            "id": call.request.rid,
            "object": "chat.completion.chunk",
            "created": call.created,
            "model": call.model,
        }
