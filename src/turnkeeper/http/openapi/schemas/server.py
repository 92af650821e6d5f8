"""The schemas of the server itself: its health, its engines, and the models that it names."""

from collections.abc import Mapping

from turnkeeper.choices import Durability, PauseMode
from turnkeeper.engines.engine import EngineState
from turnkeeper.http.models import UNKNOWN_TO_ANTHROPIC
from turnkeeper.http.openapi.schemas.values import (
    COUNT,
    FLAG,
    TEXT,
    allow_null,
    build_list,
    build_object,
    refer,
)
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.health import ENGINE_STATES, NotReady

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

SERVER_SCHEMAS: Mapping[str, JsonObject] = {
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
            "worker": refer("Worker"),
        },
        optional=("engines", "problems", "tasks", "tokenizer", "store", "worker"),
    ),
    "Worker": build_object(
        "Which process of the server answers; each holds sessions of its own.",
        {
            "number": {**COUNT, "description": "From 0."},
            "count": {"type": "integer", "minimum": 1},
            "ports": {
                **build_list(allow_null(COUNT), minItems=1),
                "description": "Of each process, in order; null where it took a free one.",
            },
        },
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
}
