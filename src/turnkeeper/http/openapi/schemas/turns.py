"""The schemas of turns: what each dialect sends and is answered."""

from collections.abc import Mapping

from turnkeeper.fields import FIELDS, is_reaching
from turnkeeper.http.openapi.schemas.values import (
    ANYTHING,
    COUNT,
    FLAG,
    OBJECT,
    TEXT,
    allow_null,
    build_list,
    build_object,
)
from turnkeeper.jsontypes import JsonObject


def _build_turn_body(description: str, own: Mapping[str, JsonObject], required: tuple[str, ...]) -> JsonObject:
    """Build the schema of a turn's body: the members of one dialect, and the fields that every dialect reads."""
    shared = {
        name: {"description": f"Must be {row.check.expected}."} if row.check else ANYTHING
        for name, row in FIELDS.items()
        if is_reaching(row)
    }
    members = {**shared, **own}
    return build_object(description, members, optional=members.keys() - set(required), is_closed=False)


_MESSAGES = build_list(OBJECT, minItems=1)
_STREAM = {**allow_null(FLAG), "description": "Whether the reply comes as server-sent events."}
_KWARGS = {**allow_null(OBJECT), "description": "Given to the chat template."}

TURN_SCHEMAS: Mapping[str, JsonObject] = {
    "TokenCount": build_object("The length of the prompt that the turn would have.", {"input_tokens": COUNT}),
    "ChatRequest": _build_turn_body(
        "A request of chat completions.",
        {
            "messages": _MESSAGES,
            "tools": allow_null(build_list(OBJECT)),
            "model": allow_null(TEXT),
            "stream": _STREAM,
            "stream_options": allow_null(OBJECT),
            "logprobs": allow_null(FLAG),
            "chat_template_kwargs": _KWARGS,
        },
        ("messages",),
    ),
    "ChatReply": build_object(
        "A `chat.completion`.",
        {
            "id": TEXT,
            "object": {"const": "chat.completion"},
            "created": COUNT,
            "model": TEXT,
            "choices": build_list(
                build_object(
                    "The reply.",
                    {
                        "index": {"const": 0},
                        "message": OBJECT,
                        "logprobs": allow_null(OBJECT),
                        "finish_reason": {"enum": ["stop", "length", "tool_calls", "content_filter"]},
                        "matched_stop": ANYTHING,
                        "meta_info": OBJECT,
                    },
                )
            ),
            "usage": OBJECT,
        },
    ),
    "MessagesRequest": _build_turn_body(
        "A request of Anthropic Messages.",
        {
            "messages": _MESSAGES,
            "system": {"anyOf": [TEXT, build_list(OBJECT), {"type": "null"}]},
            "tools": allow_null(build_list(OBJECT)),
            "tool_choice": allow_null(OBJECT),
            "stop_sequences": allow_null(build_list(TEXT)),
            "output_config": allow_null(OBJECT),
            "model": allow_null(TEXT),
            "stream": _STREAM,
            "chat_template_kwargs": _KWARGS,
        },
        ("messages",),
    ),
    "MessagesReply": build_object(
        "A `message`.",
        {
            "id": TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": TEXT,
            "content": build_list(OBJECT, minItems=1),
            "stop_reason": {"enum": ["end_turn", "tool_use", "stop_sequence", "max_tokens", "refusal"]},
            "stop_sequence": allow_null(TEXT),
            "usage": OBJECT,
        },
    ),
    "ResponsesRequest": _build_turn_body(
        "A request of OpenAI Responses.",
        {
            "input": {"anyOf": [TEXT, _MESSAGES]},
            "instructions": allow_null(TEXT),
            "tools": allow_null(build_list(OBJECT)),
            "tool_choice": ANYTHING,
            "parallel_tool_calls": allow_null(FLAG),
            "text": allow_null(OBJECT),
            "include": allow_null(build_list(TEXT)),
            "model": allow_null(TEXT),
            "stream": _STREAM,
            "stream_options": allow_null(OBJECT),
            "chat_template_kwargs": _KWARGS,
            "previous_response_id": {"type": "null", "description": "Not served: send the whole conversation."},
            "conversation": {"type": "null", "description": "Not served: send the whole conversation."},
            "background": {"enum": [False, None]},
        },
        ("input",),
    ),
    "ResponsesReply": build_object(
        "A `response`; it also repeats fields of the request.",
        {
            "id": TEXT,
            "object": {"const": "response"},
            "created_at": COUNT,
            "status": {"enum": ["completed", "incomplete"]},
            "error": {"type": "null"},
            "incomplete_details": allow_null(OBJECT),
            "model": TEXT,
            "output": build_list(OBJECT, minItems=1),
            "usage": OBJECT,
        },
        is_closed=False,
    ),
}
