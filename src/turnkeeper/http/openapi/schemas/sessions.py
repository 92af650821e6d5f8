"""The schemas of sessions: how they are opened, listed, shown and collected."""

from collections.abc import Mapping

from turnkeeper.choices import HistoryKind
from turnkeeper.core import FinishReason, Label
from turnkeeper.http.openapi.schemas.values import (
    COUNT,
    NUMBER,
    OBJECT,
    TEXT,
    allow_null,
    build_list,
    build_object,
    refer,
)
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.sessions import NewSession, SessionStatus
from turnkeeper.service.sessions.listing import MAX_ROW_TURNS
from turnkeeper.telemetry import TurnPhase


def _build_new_session() -> dict[str, JsonObject]:
    """Build the schema of the body that opens a session, and those of the choices that it refers to."""
    schema = NewSession.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**schema.pop("$defs", {}), "NewSession": schema}


_REWARD = {"anyOf": [NUMBER, OBJECT]}
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

SESSION_SCHEMAS: Mapping[str, JsonObject] = {
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
            "worker": refer("Worker"),
        },
    ),
    "SessionRow": build_object(
        "A session in the list. Ages are seconds, times Unix seconds.",
        {
            "session_id": TEXT,
            "state": {"enum": [str(state) for state in SessionStatus]},
            "closed": {
                **allow_null(TEXT),
                "description": "Why it takes no further turns; null while it does, and for one in the store alone.",
            },
            "history": {"enum": [*map(str, HistoryKind), None]},
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
            "error": {**TEXT, "description": "Why its opening cannot be read from the store."},
        },
        optional=("error",),
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
}
