"""OpenAI chat completions.

The reply is whole when it gets here, since log-probabilities and ids come with the end of an engine call; a stream
replays it as deltas that any client assembles to the same message. Meta data of the engine is passed on without its
lists: an agent has no use for them and a trainer collects samples.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.core.turn import TurnRequest
from turnkeeper.errors import ContextLengthError, RequestError, TurnkeeperError
from turnkeeper.http.dialects.canon import get_object, parse_messages, parse_tools
from turnkeeper.http.dialects.dialect import AgentCall, DecodeToken, ParseContext, ReplyStream
from turnkeeper.http.jsonbody import describe_json, encode_json
from turnkeeper.http.sse import encode_event, encode_text_event
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.reply import AgentReply
from turnkeeper.service.sampling import (
    FIXED_FIELDS,
    SAMPLING_RULES,
    TOKEN_LIMIT_SPELLINGS,
    check_owned_fields,
    parse_sampling,
)

READ_FIELDS: frozenset[str] = frozenset(
    {"messages", "tools", "chat_template_kwargs", "model", "stream", "stream_options", "logprobs", "return_meta_info"}
    | {*FIXED_FIELDS, *SAMPLING_RULES, *TOKEN_LIMIT_SPELLINGS}
)
"""Body fields that are read here; what remains is forwarded to the engine as it came."""

NOISE_FIELDS: frozenset[str] = frozenset(
    {"metadata", "user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Bookkeeping of hosted services: without effect on a reply, and left out."""

_ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


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
            "finish_reason": reply.finish_reason,
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

    def open_stream(self, response_id: str) -> ReplyStream:
        """Chunks under one id."""
        return ChatStream(self, response_id)

    def render_logprobs(self, reply: AgentReply) -> JsonObject | None:
        """Each sampled token with its text and log-probability; None unless asked for."""
        if not self.wants_logprobs:
            return None
        return {"content": [self._render_token(*pair) for pair in zip(reply.ids, reply.logprobs, strict=True)]}

    def _render_token(self, token_id: Any, logprob: Any) -> JsonObject:
        text = self.decode_token(int(token_id))
        return {"token": text, "logprob": float(logprob), "bytes": list(text.encode()), "top_logprobs": []}


class ChatStream:
    """A reply as ``chat.completion.chunk`` events: the role once, every field in one delta, usage on request."""

    def __init__(self, call: ChatCall, response_id: str) -> None:
        self._call = call
        self._response_id = response_id
        self._created_s = 0
        self._is_open = False

    def heartbeat(self) -> bytes:
        """The role first, afterwards a delta without content."""
        if self._is_open:
            return self._chunk({})
        return self._open()

    def finish(self, reply: AgentReply) -> bytes:
        """The deltas, the finish reason, the usage where wanted, ``[DONE]``."""
        self._created_s = self._created_s or reply.created_s
        parts = [] if self._is_open else [self._open()]
        parts += [self._chunk(delta) for delta in split_deltas(reply.message)]
        parts.append(self._chunk({}, finish_reason=reply.finish_reason, logprobs=self._call.render_logprobs(reply)))
        if self._call.wants_usage:
            parts.append(encode_event(self._frame([]) | {"usage": render_usage(reply)}))
        parts.append(encode_text_event(b"[DONE]"))
        return b"".join(parts)

    def fail(self, error: TurnkeeperError) -> bytes:
        """An ``error`` object in place of a chunk; ``[DONE]`` does not follow, since nothing is done."""
        return encode_text_event(CHAT.render_error(error))

    def _open(self) -> bytes:
        self._is_open = True
        return self._chunk({"role": "assistant", "content": ""})

    def _chunk(self, delta: JsonObject, finish_reason: str | None = None, logprobs: JsonObject | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return encode_text_event(encode_json(self._frame([choice])))

    def _frame(self, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self._response_id,
            "object": "chat.completion.chunk",
            "created": self._created_s,
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
        check_owned_fields(body)
        sampling = parse_sampling(body)
        kwargs = body.get("chat_template_kwargs")
        request = TurnRequest(
            messages=parse_messages(body.get("messages")),
            tools=parse_tools(body.get("tools")),
            template_kwargs={} if kwargs is None else get_object(kwargs, "chat_template_kwargs"),
            sampling=sampling,
            forwarded={name: value for name, value in body.items() if name not in READ_FIELDS | NOISE_FIELDS},
            dialect=self.name,
            notes=tuple(f"left out {name}" for name in sorted(NOISE_FIELDS & body.keys())),
        )
        options = body.get("stream_options")
        return ChatCall(
            request=request,
            model=_read_model(body.get("model")),
            wants_stream=read_flag(body, "stream"),
            wants_usage=options is not None and read_flag(get_object(options, "stream_options"), "include_usage"),
            wants_logprobs=read_flag(body, "logprobs"),
            decode_token=context.decode_token,
        )

    def choose_status(self, error: TurnkeeperError) -> int:
        """The error's own status."""
        return error.http_status

    def render_error(self, error: TurnkeeperError) -> bytes:
        """``{"error": {"message", "type", "code", "param"}}``."""
        code = "context_length_exceeded" if isinstance(error, ContextLengthError) else error.code
        kind = _ERROR_TYPES.get(error.http_status, "server_error")
        body = {"message": str(error), "type": kind, "code": code, "param": error.facts.get("param")}
        return encode_json({"error": body})


def split_deltas(message: Mapping[str, Any]) -> Iterator[JsonObject]:
    """The deltas that add up to a message: reasoning, content, then each tool call whole."""
    if message.get("reasoning_content"):
        yield {"reasoning_content": message["reasoning_content"]}
    if message.get("content"):
        yield {"content": message["content"]}
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{**call, "index": index}]}


def render_usage(reply: AgentReply) -> JsonObject:
    """Token counts in the form of OpenAI."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def read_flag(fields: Mapping[str, Any], name: str) -> bool:
    """A boolean field that may be left out or null.

    Raises:
        RequestError: it is something else.
    """
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(f"{name} must be true or false, got {describe_json(value)}", param=name)
    return bool(value)


def _read_model(value: Any) -> str:
    if not isinstance(value, str | None):
        raise RequestError(f"model must be a string, got {describe_json(value)}", param="model")
    return value or "policy"


CHAT = ChatDialect()
