"""OpenAI chat completions.

The reply is whole when it gets here, since log-probabilities and ids come with the end of an engine call; a stream
replays it as deltas that any client assembles to the same message. Meta data of the engine is passed on without its
lists: an agent has no use for them and a trainer collects samples.
"""

from dataclasses import dataclass

from turnkeeper.core.turn import FinishReason, TurnRequest
from turnkeeper.dialects.canon import parse_messages, parse_tools
from turnkeeper.dialects.dialect import AgentCall, DecodeToken, ParseContext, ReplyStream, StreamStart
from turnkeeper.dialects.fields import choose_model, find_object, merge_nested, read_flag, read_model
from turnkeeper.dialects.images import ImageFilter
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.openai_error import build_error
from turnkeeper.dialects.progress import Progress
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.sampling import parse_fields
from turnkeeper.dialects.sse import encode_event, encode_text_event
from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import JsonObject

READ_FIELDS: frozenset[str] = frozenset(
    {"messages", "tools", "chat_template_kwargs", "model", "stream", "stream_options", "logprobs"}
)
"""Body fields that only this dialect has; all others go by their row in `turnkeeper.fields`."""

NOISE_FIELDS: frozenset[str] = frozenset(
    {"metadata", "user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Bookkeeping of hosted services: without effect on a reply, and left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A parsed chat-completions request."""

    request: TurnRequest
    model: str
    """Echoed in the reply."""
    wants_stream: bool
    wants_usage: bool
    """Whether a stream ends with a chunk of usage."""
    wants_logprobs: bool
    """Whether the reply lists each token with its log-probability."""
    decode_token: DecodeToken

    def render_reply(self, reply: AgentReply) -> bytes:
        """A ``chat.completion`` object."""
        choice: JsonObject = {
            "index": 0,
            "message": reply.message,
            "logprobs": self.render_logprobs(reply),
            "finish_reason": choose_finish_reason(reply),
            "matched_stop": reply.matched_stop,
            "meta_info": dict(reply.meta),
        }
        return encode_json(
            {
                "id": reply.response_id,
                "object": "chat.completion",
                "created": reply.created_s,
                "model": self.model,
                "choices": [choice],
                "usage": render_usage(reply),
            }
        )

    def open_stream(self, start: StreamStart) -> ReplyStream:
        """Chunks under one id."""
        return ChatStream(self, start)

    def render_logprobs(self, reply: AgentReply) -> JsonObject | None:
        """Each sampled token with its text and log-probability; None unless asked for."""
        if not self.wants_logprobs:
            return None
        places = reply.top_logprobs if reply.top_logprobs is not None else ((),) * len(reply.ids)
        tokens = zip(reply.ids.tolist(), reply.logprobs.tolist(), places, strict=True)
        return {
            "content": [
                self._render_token(token_id, logprob) | {"top_logprobs": [self._render_token(*pair) for pair in place]}
                for token_id, logprob, place in tokens
            ]
        }

    def _render_token(self, token_id: int, logprob: float) -> JsonObject:
        text = self.decode_token(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


class ChatStream:
    """A reply as ``chat.completion.chunk`` events: the role once, tool calls whole, usage on request."""

    def __init__(self, call: ChatCall, start: StreamStart) -> None:
        self._call = call
        self._start = start
        self._progress = Progress()
        self._is_open = False

    def heartbeat(self) -> bytes:
        """The role first, afterwards a delta without content."""
        return self._chunk({}) if self._is_open else self._open()

    def extend(self, *, reasoning: str, content: str) -> bytes:
        """A delta for each text."""
        self._progress.add(reasoning=reasoning, content=content)
        return self._open() + self._render_texts(reasoning, content)

    def finish(self, reply: AgentReply) -> bytes:
        """The deltas, the finish reason, the usage where wanted, ``[DONE]``."""
        rest = self._progress.find_rest(reply.message)
        parts = [self._open(), self._render_texts(rest.reasoning, rest.content)]
        for index, call in enumerate(reply.message.get("tool_calls") or ()):
            parts.append(self._chunk({"tool_calls": [{**call, "index": index}]}))
        end = choose_finish_reason(reply)
        parts.append(self._chunk({}, finish_reason=end, logprobs=self._call.render_logprobs(reply)))
        if self._call.wants_usage:
            parts.append(encode_event(self._frame([]) | {"usage": render_usage(reply)}))
        parts.append(encode_text_event(b"[DONE]"))
        return b"".join(parts)

    def fail(self, error: TurnkeeperError) -> bytes:
        """An ``error`` object in place of a chunk; ``[DONE]`` does not follow, since nothing is done."""
        return encode_text_event(CHAT.render_error(error))

    def _open(self) -> bytes:
        """The role, unless it was said."""
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
            "model": self._call.model,
            "choices": choices,
        }


class ChatDialect:
    """OpenAI chat completions."""

    name = "chat"
    path = "v1/chat/completions"
    count_path = None

    def build_response_id(self, hex_digits: str) -> str:
        """``chatcmpl-...``, as clients know it."""
        return f"chatcmpl-{hex_digits}"

    def parse_request(self, body: JsonObject, context: ParseContext) -> AgentCall:
        """Read a body; see the dialect's protocol."""
        body, nested = merge_nested(body)
        fields = parse_fields(body, read=READ_FIELDS | NOISE_FIELDS, forward_fields=context.forward_fields)
        images = ImageFilter(context.on_image)
        request = TurnRequest(
            model=read_model(body),
            messages=parse_messages(body.get("messages"), images),
            tools=parse_tools(body.get("tools")),
            chat_template_kwargs=find_object(body.get("chat_template_kwargs"), "chat_template_kwargs"),
            sampling=fields.sampling,
            forwarded=fields.forwarded,
            dropped_fields=fields.dropped_fields,
            dialect=self.name,
            notes=(
                *nested,
                *(f"left out {name}" for name in sorted(NOISE_FIELDS & body.keys())),
                *fields.notes,
                *images.notes,
            ),
        )
        options = find_object(body.get("stream_options"), "stream_options")
        return ChatCall(
            request=request,
            model=choose_model(body),
            wants_stream=read_flag(body, "stream"),
            wants_usage=read_flag(options, "include_usage"),
            wants_logprobs=read_flag(body, "logprobs"),
            decode_token=context.decode_token,
        )

    def choose_status(self, error: TurnkeeperError) -> int:
        """The error's own status."""
        return error.http_status

    def render_error(self, error: TurnkeeperError) -> bytes:
        """``{"error": {"message", "type", "code", "param"}}``."""
        return encode_json(build_error(error))


def choose_finish_reason(reply: AgentReply) -> str:
    """Why the reply ended, for agents that test it: a reply that stopped is ``tool_calls`` where it has calls.

    Engines say ``stop`` of such a reply where another than their own parser read the calls. Records and samples keep
    the word of the engine.
    """
    if reply.finish_reason not in (FinishReason.STOP, FinishReason.TOOL_CALLS):
        return reply.finish_reason
    return FinishReason.TOOL_CALLS if reply.message.get("tool_calls") else FinishReason.STOP


def render_usage(reply: AgentReply) -> JsonObject:
    """Token counts in the form of OpenAI."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


CHAT = ChatDialect()
