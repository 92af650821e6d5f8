"""OpenAI Responses: the whole of the dialect, put together from its parts.

Items are parsed in ``items``, tools in ``tools``; a reply is built in ``reply`` and ``stream``, its items named in
``ids``. A conversation comes whole each time, since a session knows its turns by their content; an item of an earlier
reply may be given by its id.
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
from turnkeeper.dialects.openai import HOSTED_FIELDS, build_error
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.dialects.responses.ids import RESPONSE_PREFIX
from turnkeeper.dialects.responses.items import parse_conversation
from turnkeeper.dialects.responses.reply import ResponsesReplyForm, build_usage, describe_end
from turnkeeper.dialects.responses.stream import ResponsesStream
from turnkeeper.dialects.responses.tools import ResponsesTools, parse_choice, parse_tools
from turnkeeper.dialects.sampling import parse_fields
from turnkeeper.errors import RequestError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject

OWN_FIELDS: frozenset[str] = frozenset(
    {"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options"}
    | {"include", "text", "chat_template_kwargs", "previous_response_id", "conversation", "background"}
)
"""The body fields that only this dialect has; any other field is treated as its row in `turnkeeper.fields` says."""

IGNORED_FIELDS: frozenset[str] = HOSTED_FIELDS | {
    "client_metadata",
    "reasoning",
    "truncation",
    "max_tool_calls",
    "context_management",
}
"""The fields that only a hosted service understands: they are left out, and the turn notes it."""

_ECHOED: JsonObject = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}
"""The fields of the request that a response repeats, each with its value where the request leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall:
    """A parsed request of OpenAI Responses."""

    request: TurnRequest
    wants_stream: bool
    form: ResponsesReplyForm

    def render_reply(self, reply: AgentReply) -> bytes:
        """Render the reply as a ``response`` object."""
        output = list(self.form.build_items(reply))
        members = {**describe_end(reply), "output": output, "usage": build_usage(reply)}
        return encode_json(self.form.build_response(reply.response_id, reply.created_s, **members))

    def open_stream(self, start: StreamStart) -> ReplyStream:
        """Open a stream of the events of one response."""
        return ResponsesStream(start, self.form)


class ResponsesDialect:
    """The dialect of OpenAI Responses."""

    name = "responses"
    path = "v1/responses"
    count_path = "v1/responses/input_tokens"
    repeats_messages = False

    def build_response_id(self, hex_digits: str) -> str:
        """Build ``resp_`` and the digits, the form that OpenAI's clients know."""
        return f"{RESPONSE_PREFIX}{hex_digits}"

    def parse_request(self, body: JsonObject, context: ParseContext) -> AgentCall:
        """Parse a body."""
        body, nested = merge_nested(body)
        _check_stored(body)
        tools = parse_tools(body.get("tools"))
        conversation = parse_conversation(
            body.get("instructions"), body.get("input"), ImageFilter(context.on_image), context.find_reply
        )
        ignored = [f"left out {name}" for name in sorted(IGNORED_FIELDS & body.keys())]
        ignored += [
            f"left out text.{name}"
            for name in sorted(get_optional_object(body.get("text"), "text"))
            if name != "format"
        ]
        fields = parse_fields(
            {**body, **_parse_format(body.get("text"))},
            read=OWN_FIELDS | IGNORED_FIELDS,
            forward_fields=context.forward_fields,
        )
        request = TurnRequest(
            model=get_model(body),
            messages=conversation.messages,
            tools=tools.tools,
            chat_template_kwargs=get_optional_object(body.get("chat_template_kwargs"), "chat_template_kwargs"),
            sampling=fields.sampling,
            forwarded={**fields.forwarded, **(_constrain_calls(body) if tools.tools else {})},
            dropped_fields=fields.dropped_fields,
            dialect=self.name,
            notes=(*nested, *ignored, *fields.notes, *tools.notes, *conversation.notes),
        )
        get_optional_object(body.get("stream_options"), "stream_options")
        return ResponsesCall(request=request, wants_stream=get_flag(body, "stream"), form=_parse_form(body, tools))

    def choose_status(self, error: TurnkeeperError) -> int:
        """Choose the status of the error itself: this API has no others."""
        return error.http_status

    def render_error(self, error: TurnkeeperError) -> bytes:
        """Render the error as OpenAI's error object."""
        return encode_json(build_error(error))


def _check_stored(body: Mapping[str, Any]) -> None:
    """Refuse a request that continues something stored by a hosted service."""
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            raise RequestError(
                f"{name} is not served: no response is stored under its id",
                hint="send the whole conversation as input, and store: false",
                param=name,
            )
    if get_flag(body, "background"):
        raise RequestError("background must be false: a reply is delivered on its own connection", param="background")


def _constrain_calls(body: Mapping[str, Any]) -> JsonObject:
    choice = parse_choice(body.get("tool_choice"))
    if body.get("parallel_tool_calls") is None or get_flag(body, "parallel_tool_calls"):
        return choice
    return {**choice, "parallel_tool_calls": False}


def _parse_format(value: Any) -> JsonObject:
    """Parse ``text.format`` into ``response_format`` of chat completions."""
    shape = get_optional_object(get_optional_object(value, "text").get("format"), "text.format")
    match shape.get("type"):
        case None | "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            get_object(shape.get("schema"), "text.format.schema")
            inner = {name: item for name, item in shape.items() if name != "type"}
            return {"response_format": {"type": "json_schema", "json_schema": inner}}
        case kind:
            raise RequestError(
                f"text.format.type must be text, json_object or json_schema, got {kind!r}", param="text.format.type"
            )


def _parse_form(body: Mapping[str, Any], tools: ResponsesTools) -> ResponsesReplyForm:
    given = {name: body[name] for name in _ECHOED if body.get(name) is not None}
    return ResponsesReplyForm(
        model=choose_model(body),
        tools=tools,
        wants_encrypted_reasoning="reasoning.encrypted_content" in get_list(body.get("include"), "include"),
        echoed={**_ECHOED, **given},
    )


RESPONSES = ResponsesDialect()
