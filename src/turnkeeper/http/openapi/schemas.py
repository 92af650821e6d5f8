"""The JSON Schemas of the OpenAPI document, by name: bodies, replies and errors.

What is declared elsewhere is taken from there: the body that opens a session, the fields of a turn's request, the
modes of a pause, the codes of errors. The rest is written here, and tests compare it with what the server says.
"""

from collections.abc import Iterable, Mapping

from turnkeeper.choices import Durability, HistoryKind, PauseMode
from turnkeeper.core import FinishReason, Label
from turnkeeper.engines.engine import EngineState
from turnkeeper.errors import ConfigError, TurnkeeperError
from turnkeeper.fields import FIELDS, is_reaching
from turnkeeper.http.models import UNKNOWN_TO_ANTHROPIC
from turnkeeper.http.openapi.schema_values import (
    ANYTHING,
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    allow_null,
    build_list,
    build_object,
    refer,
)
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.health import ENGINE_STATES, NotReady
from turnkeeper.service.sessions import NewSession, SessionStatus
from turnkeeper.service.sessions.listing import MAX_ROW_TURNS
from turnkeeper.telemetry import TurnPhase


def list_error_codes() -> list[str]:
    """List the code of every error that a response may carry, in the order of the tree of errors."""

    def walk(error: type[TurnkeeperError]) -> Iterable[str]:
        yield error.code
        for child in error.__subclasses__():
            if not issubclass(child, ConfigError) and child.__module__ == TurnkeeperError.__module__:
                yield from walk(child)

    return list(dict.fromkeys(walk(TurnkeeperError)))


def _build_turn_body(description: str, own: Mapping[str, JsonObject], required: tuple[str, ...]) -> JsonObject:
    """Build the schema of a turn's body: the members of one dialect, and the fields that every dialect reads."""
    shared = {
        name: {"description": f"Must be {row.check.expected}."} if row.check else ANYTHING
        for name, row in FIELDS.items()
        if is_reaching(row)
    }
    members = {**shared, **own}
    return build_object(description, members, optional=members.keys() - set(required), is_closed=False)


def _build_new_session() -> dict[str, JsonObject]:
    """Build the schema of the body that opens a session, and those of the choices that it refers to."""
    schema = NewSession.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), "NewSession": schema}


_MESSAGES = build_list(OBJECT, minItems=1)
_REWARD = {"anyOf": [NUMBER, OBJECT]}
_STREAM = {**allow_null(FLAG), "description": "Whether the reply comes as server-sent events."}
_KWARGS = {**allow_null(OBJECT), "description": "Given to the chat template."}
_ENGINE_STATE = {"enum": [str(state) for state in EngineState]}

_ENGINE = build_object(
    "What is known of one engine.",
    {
        "url": TEXT,
        "state": _ENGINE_STATE,
        "wire": {"enum": ["chat", "generate", None]},
        "route": {"enum": ["unchecked", "sound", "unfit"]},
        "error": allow_null(TEXT),
    },
)
_STORE = build_object(
    "The store of sessions; null where they are kept in memory.",
    {
        "sqlite": TEXT,
        "durability": {"enum": [*map(str, Durability)]},
        "row_durability": {"enum": [*map(str, Durability)]},
        "sessions": COUNT,
        "used_bytes": COUNT,
        "failure": TEXT,
        "failed_writes": COUNT,
        "moved_aside": TEXT,
        "torn_sessions": COUNT,
        "skipped_records": COUNT,
    },
)
_TASK = build_object(
    "A background task.",
    {"state": {"enum": ["running", "restarting", "ended"]}, "failures": COUNT, "error": allow_null(TEXT)},
)
_OPENAI_MODEL = build_object(
    "A model, to OpenAI's clients.", {"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT}
)
_ANTHROPIC_MODEL = build_object(
    "A model, to Anthropic's clients.",
    {
        "type": {"const": "model"},
        "id": TEXT,
        "display_name": TEXT,
        "created_at": TEXT,
        "lifecycle": TEXT,
        **{name: {"type": "null"} for name in UNKNOWN_TO_ANTHROPIC},
    },
)

_PHASE: Mapping[str, JsonObject] = {
    "number": {**COUNT, "description": "The turn's number in its session, in the order in which turns began."},
    "phase": {"enum": [str(phase) for phase in TurnPhase]},
    "age_s": NUMBER,
    "phase_age_s": NUMBER,
    "engine": {**allow_null(TEXT), "description": "The engine that has the call; null in other phases."},
}
_CONTENT: Mapping[str, JsonObject] = {
    "messages": build_list(OBJECT),
    "message": OBJECT,
    "trim": COUNT,
    "prompt_ids": build_list(COUNT),
    "completion_ids": build_list(COUNT),
    "logprobs": build_list(NUMBER),
    "versions": build_list(OBJECT),
}

SCHEMAS: Mapping[str, JsonObject] = {
    **_build_new_session(),
    "SessionCreated": build_object(
        "The session that was opened.",
        {
            "session_id": TEXT,
            "key": {**TEXT, "description": "Opens the session to its agent; where the server has keys."},
        },
        optional=("key",),
    ),
    "SessionPage": build_object(
        "A page of sessions, in the order that was asked for.",
        {
            "sessions": build_list(refer("SessionRow")),
            "next": {**allow_null(TEXT), "description": "The `after` of the next page; null on the last one."},
        },
    ),
    "SessionRow": build_object(
        "A session in the list. Ages are seconds, times Unix seconds.",
        {
            "session_id": TEXT,
            "state": {"enum": [str(state) for state in SessionStatus]},
            "closed": {**allow_null(TEXT), "description": "Why it takes no further turns; null while it does."},
            "history": {"enum": [str(kind) for kind in HistoryKind]},
            "created_at": NUMBER,
            "last_request_at": {**NUMBER, "description": "When its last request ended; its creation before the first."},
            "age_s": NUMBER,
            "idle_s": {**NUMBER, "description": "Since its last request ended; 0 while one is in flight."},
            "turns": COUNT,
            "bytes": COUNT,
            "in_flight": {**COUNT, "description": "How many turns are in flight."},
            "in_flight_turns": {
                **build_list(refer("TurnPhase"), maxItems=MAX_ROW_TURNS),
                "description": f"The oldest {MAX_ROW_TURNS} of them, the oldest first.",
            },
            "metadata": {
                **allow_null(OBJECT),
                "description": "What it was created with; null where that is too large for a list.",
            },
        },
    ),
    "TurnPhase": build_object("Where a turn in flight stands.", _PHASE),
    "Session": build_object(
        "A session: a record for each turn of the path that is shown, and what is known of the whole.",
        {"session_id": TEXT, "records": build_list(OBJECT), "metadata": refer("SessionMetadata")},
    ),
    "SessionMetadata": build_object(
        "The newest path's ids, and what is known of all turns.",
        {
            "accumulated_token_ids": build_list(COUNT),
            "max_trim_tokens": COUNT,
            "tito_session_mismatch": build_list(OBJECT),
            "tree": OBJECT,
            "turnkeeper": build_object(
                "What only turnkeeper says.",
                {"turns": build_list(refer("TurnDescription")), "in_flight": build_list(refer("TurnInFlight"))},
                is_closed=False,
            ),
        },
        optional=("tito_session_mismatch", "tree"),
        is_closed=False,
    ),
    "TurnInFlight": build_object(
        "A turn that is not recorded yet.",
        {
            **_PHASE,
            "parent": {**allow_null(COUNT), "description": "The turn that it goes on from; null for a first prompt."},
            "response_id": TEXT,
            "dialect": TEXT,
            "model": TEXT,
            "agent": allow_null(TEXT),
            "added_messages": COUNT,
            "prompt_tokens": {**COUNT, "description": "0 until the prompt is rendered."},
            "engine_calls": COUNT,
            "clients": {**COUNT, "description": "How many clients are connected and wait for the reply."},
            "times": refer("TurnTimes"),
        },
    ),
    "TurnDescription": build_object(
        "A recorded turn.",
        {
            "id": COUNT,
            "parent": allow_null(COUNT),
            "response_id": TEXT,
            "label": {"enum": [str(label) for label in Label]},
            "finish_reason": {"enum": [str(reason) for reason in FinishReason]},
            "prompt_tokens": COUNT,
            "added_tokens": {**COUNT, "description": "Those of the prompt that are not its parent's."},
            "completion_tokens": COUNT,
            "cached_tokens": COUNT,
            "sampling": OBJECT,
            "why": {**OBJECT, "description": "Why it is no extension."},
            "tokens": {**OBJECT, "description": "How many of its sampled tokens train, and what became of the others."},
            "times": refer("TurnTimes"),
            "engine": {**allow_null(TEXT), "description": "The engine that answered; null for others than the admin."},
            "engine_calls": COUNT,
            **{name: {**schema, "description": "With `branches=1`."} for name, schema in _CONTENT.items()},
        },
        optional=("why", "tokens", "times", "engine", "engine_calls", *_CONTENT),
        is_closed=False,
    ),
    "TurnTimes": build_object(
        "The seconds that a turn spent in each phase.", {f"{phase}_s": NUMBER for phase in TurnPhase}
    ),
    "SamplesRequest": build_object(
        "How samples are collected.",
        {
            "max_seq_len": allow_null({"type": "integer", "minimum": 1}),
            "metadata": {**allow_null(OBJECT), "description": "Goes into every sample; `reward` is that of all."},
            "rewards": {
                **allow_null({"type": "object", "additionalProperties": _REWARD}),
                "description": "A reward for each response id.",
            },
            "since": {
                **allow_null(TEXT),
                "description": "An acknowledged receipt, whose turns come along without loss.",
            },
        },
        optional=("max_seq_len", "metadata", "rewards", "since"),
    ),
    "AckRequest": build_object("The samples that a trainer has.", {"receipt": TEXT}),
    "Receipt": build_object(
        "The turns that a receipt stands for, in or out of samples.", {"receipt": TEXT, "turns": build_list(COUNT)}
    ),
    "PauseRequest": build_object(
        "How the engines are paused.",
        {"mode": {"enum": [str(mode) for mode in PauseMode]}, "forward": FLAG},
        optional=("forward",),
        is_closed=False,
    ),
    "ContinueRequest": build_object(
        "Whether every engine is told as well.", {"forward": FLAG}, optional=("forward",), is_closed=False
    ),
    "GateState": build_object(
        "Whether new turns are held back, and what each engine answered.",
        {
            "state": {"enum": ["serving", "paused"]},
            "mode": {"enum": [*(str(mode) for mode in PauseMode), None]},
            "engines": build_list(
                build_object("An engine's answer.", {"url": TEXT, "ok": FLAG, "error": allow_null(TEXT)})
            ),
        },
    ),
    "TurnsAborted": build_object("How many sessions take no further turns.", {"sessions": COUNT}),
    "Status": build_object("The answer to a probe.", {"status": {"const": "ok"}}),
    "Health": build_object(
        "The state of the server; without the server's key, where it has one, the first three members.",
        {
            "status": {"enum": ["ok", "draining"]},
            "session_server_instance_id": TEXT,
            "engine": _ENGINE_STATE,
            "engines": build_list(_ENGINE),
            "problems": build_list(TEXT),
            "tasks": {"type": "object", "additionalProperties": _TASK},
            "tokenizer": TEXT,
            "store": allow_null(_STORE),
        },
        optional=("engines", "problems", "tasks", "tokenizer", "store"),
    ),
    "Readiness": build_object(
        "Whether a turn that is sent now can be served.",
        {
            "ready": FLAG,
            "reason": {"enum": [None, *map(str, NotReady)]},
            "engines": build_object("How many engines are in each state.", dict.fromkeys(ENGINE_STATES, COUNT)),
        },
    ),
    "Model": {"oneOf": [_OPENAI_MODEL, _ANTHROPIC_MODEL]},
    "ModelList": {
        "oneOf": [
            build_object("To OpenAI's clients.", {"object": {"const": "list"}, "data": build_list(_OPENAI_MODEL)}),
            build_object(
                "To Anthropic's clients.",
                {"data": build_list(_ANTHROPIC_MODEL), "first_id": TEXT, "last_id": TEXT, "has_more": FLAG},
            ),
        ]
    },
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
    "ControlError": build_object(
        "An error of every route but turns.", {"error": TEXT, "code": {"enum": list_error_codes()}}
    ),
    "OpenAIError": build_object(
        "An error of chat completions and Responses.",
        {
            "error": build_object(
                "What is wrong.", {"message": TEXT, "type": TEXT, "code": TEXT, "param": allow_null(TEXT)}
            )
        },
    ),
    "AnthropicError": build_object(
        "An error of Anthropic Messages.",
        {
            "type": {"const": "error"},
            "error": build_object("What is wrong.", {"type": TEXT, "message": TEXT, "code": TEXT}),
        },
    ),
    "ModelError": {"oneOf": [refer("OpenAIError"), refer("AnthropicError")]},
}
