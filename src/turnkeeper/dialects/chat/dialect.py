"""OpenAI chat completions: the whole of the dialect, put together from its parts.

Messages and tools are parsed in ``request``; a reply is built in ``reply`` and ``stream``. Meta data of the engine is
passed on without its lists: an agent has no use for them and a trainer collects samples.
"""

from dataclasses import dataclass

from turnkeeper.core.turn import TurnRequest
from turnkeeper.dialects.chat.reply import ChatReplyForm, build_chat_completion
from turnkeeper.dialects.chat.request import parse_messages, parse_tools
from turnkeeper.dialects.chat.stream import ChatStream
from turnkeeper.dialects.dialect import AgentCall, ParseContext, ReplyStream, StreamStart
from turnkeeper.dialects.images import ImageFilter
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.members import choose_model, get_flag, get_model, get_optional_object, merge_nested
from turnkeeper.dialects.openai import HOSTED_FIELDS, build_error
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.sampling import parse_fields
from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import JsonObject

OWN_FIELDS: frozenset[str] = frozenset(
    {"messages", "tools", "chat_template_kwargs", "model", "stream", "stream_options", "logprobs"}
)
"""The body fields that only this dialect has; any other field is treated as its row in `turnkeeper.fields` says."""

IGNORED_FIELDS = HOSTED_FIELDS
"""The fields that only a hosted service understands: they are left out, and the turn notes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A parsed chat-completions request."""

    request: TurnRequest
    wants_stream: bool
    form: ChatReplyForm

    def render_reply(self, reply: AgentReply) -> bytes:
        """Render the reply as a ``chat.completion`` object."""
        return encode_json(build_chat_completion(reply, self.form))

    def open_stream(self, start: StreamStart) -> ReplyStream:
        """Open a stream of chunks, all under one id."""
        return ChatStream(start, self.form)


class ChatDialect:
    """The dialect of OpenAI chat completions."""

    name = "chat"
    path = "v1/chat/completions"
    count_path = None
    repeats_messages = True

    def build_response_id(self, hex_digits: str) -> str:
        """Build ``chatcmpl-`` and the digits, the form that OpenAI's clients know."""
        return f"chatcmpl-{hex_digits}"

    def parse_request(self, body: JsonObject, context: ParseContext) -> AgentCall:
        """Parse a body."""
        body, nested = merge_nested(body)
        fields = parse_fields(body, read=OWN_FIELDS | IGNORED_FIELDS, forward_fields=context.forward_fields)
        images = ImageFilter(context.on_image)
        request = TurnRequest(
            model=get_model(body),
            messages=parse_messages(body.get("messages"), images),
            tools=parse_tools(body.get("tools")),
            chat_template_kwargs=get_optional_object(body.get("chat_template_kwargs"), "chat_template_kwargs"),
            sampling=fields.sampling,
            forwarded=fields.forwarded,
            dropped_fields=fields.dropped_fields,
            dialect=self.name,
            notes=(
                *nested,
                *(f"left out {name}" for name in sorted(IGNORED_FIELDS & body.keys())),
                *fields.notes,
                *images.notes,
            ),
        )
        options = get_optional_object(body.get("stream_options"), "stream_options")
        form = ChatReplyForm(
            model=choose_model(body),
            wants_usage=get_flag(options, "include_usage"),
            wants_logprobs=get_flag(body, "logprobs"),
            decode_token=context.decode_token,
            spell_token=context.spell_token or (lambda token_id: context.decode_token(token_id).encode()),
        )
        return ChatCall(request=request, wants_stream=get_flag(body, "stream"), form=form)

    def choose_status(self, error: TurnkeeperError) -> int:
        """Choose the status of the error itself: this API has no others."""
        return error.http_status

    def render_error(self, error: TurnkeeperError) -> bytes:
        """Render the error as OpenAI's error object."""
        return encode_json(build_error(error))


CHAT = ChatDialect()
