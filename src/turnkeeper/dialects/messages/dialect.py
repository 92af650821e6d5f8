"""Anthropic Messages: the whole of the dialect, put together from its parts.

The conversation is parsed in ``request``, tools in ``tools``; a reply is built in ``reply`` and ``stream``, errors in
``error``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.core.turn import TurnRequest
from turnkeeper.dialects.dialect import AgentCall, ParseContext, ReplyStream, StreamStart
from turnkeeper.dialects.images import ImageFilter
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.members import (
    choose_model,
    get_flag,
    get_list,
    get_model,
    get_object,
    get_optional_object,
    merge_nested,
)
from turnkeeper.dialects.messages import error as messages_error
from turnkeeper.dialects.messages.reply import build_message
from turnkeeper.dialects.messages.request import parse_conversation
from turnkeeper.dialects.messages.stream import MessagesStream
from turnkeeper.dialects.messages.tools import parse_choice, parse_tools
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.sampling import parse_fields
from turnkeeper.errors import RequestError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject

OWN_FIELDS: frozenset[str] = frozenset(
    {"model", "system", "messages", "tools", "tool_choice", "stream", "stop_sequences", "chat_template_kwargs"}
    | {"output_config"}
)
"""The body fields that only this dialect has; any other field is treated as its row in `turnkeeper.fields` says."""

IGNORED_FIELDS: frozenset[str] = frozenset(
    {"metadata", "service_tier", "context_management", "container", "mcp_servers", "betas", "inference_geo", "speed"}
    | {"thinking", "cache_control", "anthropic_beta", "anthropic_version"}
)
"""The fields that only a hosted model understands: they are left out, and the turn notes it. ``thinking`` is one of
them, since whether the policy thinks is decided by its chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesCall:
    """A parsed request of Anthropic Messages."""

    request: TurnRequest
    model: str
    """The model's name that the reply shows."""
    wants_stream: bool

    def render_reply(self, reply: AgentReply) -> bytes:
        """Render the reply as a ``message`` object."""
        return encode_json(build_message(reply, self.model))

    def open_stream(self, start: StreamStart) -> ReplyStream:
        """Open a stream of the events of one message."""
        return MessagesStream(start, self.model)


class MessagesDialect:
    """The dialect of Anthropic Messages."""

    name = "messages"
    path = "v1/messages"
    count_path = "v1/messages/count_tokens"
    repeats_messages = True

    def build_response_id(self, hex_digits: str) -> str:
        """Build ``msg_`` and the digits, the form that Anthropic's clients know."""
        return f"msg_{hex_digits}"

    def parse_request(self, body: JsonObject, context: ParseContext) -> AgentCall:
        """Parse a body."""
        body, nested = merge_nested(body)
        tools = parse_tools(body.get("tools"))
        images = ImageFilter(context.on_image)
        conversation = parse_conversation(
            body.get("system"), body.get("messages"), images, tools, goes_on=context.goes_on
        )
        loaded = tools.list_loaded(conversation.references)
        choice = parse_choice(body.get("tool_choice")) if tools.tools or loaded else {}
        output = _parse_output(body.get("output_config"))
        ignored = tuple(f"left out {name}" for name in sorted(IGNORED_FIELDS & body.keys()))
        fields = parse_fields(
            {**body, **_parse_stop(body.get("stop_sequences")), **output.sampling},
            read=OWN_FIELDS | IGNORED_FIELDS,
            forward_fields=context.forward_fields,
        )
        request = TurnRequest(
            model=get_model(body),
            messages=conversation.messages,
            tools=tools.tools,
            loaded_tools=loaded,
            chat_template_kwargs=get_optional_object(body.get("chat_template_kwargs"), "chat_template_kwargs"),
            sampling=fields.sampling,
            forwarded={**fields.forwarded, **choice},
            dropped_fields=fields.dropped_fields,
            dialect=self.name,
            notes=(*nested, *ignored, *fields.notes, *output.notes, *tools.notes, *conversation.notes),
        )
        return MessagesCall(request=request, model=choose_model(body), wants_stream=get_flag(body, "stream"))

    def choose_status(self, error: TurnkeeperError) -> int:
        """Choose the status of the error itself, save that Anthropic's clients expect 529 in place of 503."""
        return messages_error.choose_status(error)

    def render_error(self, error: TurnkeeperError) -> bytes:
        """Render the error as Anthropic's error object."""
        return messages_error.render_error(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """The fields and notes that follow from ``output_config``."""

    sampling: Mapping[str, Any]
    notes: tuple[str, ...]


def _parse_output(value: Any) -> _Output:
    config = get_optional_object(value, "output_config")
    notes = tuple(f"left out output_config.{name}" for name in sorted(config) if name != "format")
    if config.get("format") is None:
        return _Output(sampling={}, notes=notes)
    shape = get_object(config["format"], "output_config.format")
    if shape.get("type") != "json_schema":
        raise RequestError(
            f"output_config.format.type must be json_schema, got {shape.get('type')!r}", param="output_config.format"
        )
    schema = get_object(shape.get("schema"), "output_config.format.schema")
    wanted = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    return _Output(sampling={"response_format": wanted}, notes=notes)


def _parse_stop(value: Any) -> JsonObject:
    sequences = get_list(value, "stop_sequences")
    if not all(isinstance(text, str) and text for text in sequences):
        raise RequestError("stop_sequences must be a list of strings, none empty", param="stop_sequences")
    return {"stop": sequences} if sequences else {}


MESSAGES = MessagesDialect()
