"""Descriptions of the routes for the OpenAPI document: an `Operation` for each handler, and those of a dialect."""

from turnkeeper.dialects import Dialect
from turnkeeper.errors import EnginePausedError
from turnkeeper.http.openapi.document import Operation
from turnkeeper.http.queries import LIST_PARAMETERS, METADATA_PREFIX, SESSION_FLAGS

CREATE_SESSION = Operation(reply="The session is open.", schema="SessionCreated", body="NewSession", fails=(429, 503))
LIST_SESSIONS = Operation(
    reply="A page of sessions.",
    schema="SessionPage",
    query=(*LIST_PARAMETERS, f"{METADATA_PREFIX}KEY"),
    fails=(400,),
)
GET_SESSION = Operation(reply="The session.", schema="Session", query=tuple(SESSION_FLAGS), fails=(400,))
DELETE_SESSION = Operation(reply="The session has ended.", status=204, media_type="")
COLLECT_SAMPLES = Operation(
    reply="The samples, in safetensors.", media_type="application/octet-stream", body="SamplesRequest", fails=(422,)
)
ACKNOWLEDGE_SAMPLES = Operation(
    reply="The turns that the receipt stands for are acknowledged.",
    schema="Receipt",
    body="AckRequest",
    is_body_required=True,
    fails=(503,),
)
LIST_MODELS = Operation(reply="The models that the server knows by name.", schema="ModelList", error="ModelError")
GET_MODEL = Operation(reply="The model; every name is one.", schema="Model", error="ModelError")
PROBE = Operation(reply="There is a server, and the session if the path names one.", schema="Status")
HEALTH = Operation(
    reply="The server serves.", schema="Health", other_statuses={503: "The server is stopping: send it nothing new."}
)
READY = Operation(
    reply="Turns are served.", schema="Readiness", other_statuses={503: "No turn can be served now: the body says why."}
)
METRICS = Operation(reply="The metrics.", media_type="text/plain")
PAUSE_ENGINES = Operation(
    reply="New turns are held back.",
    schema="GateState",
    body="PauseRequest",
    is_body_required=True,
    fails=(502,),
)
CONTINUE_ENGINES = Operation(reply="Turns go on.", schema="GateState", body="ContinueRequest", fails=(502,))
ABORT_TURNS = Operation(reply="Every turn in flight has ended.", schema="TurnsAborted")

_FORMS = {
    "chat": ("ChatRequest", "ChatReply", "OpenAIError"),
    "messages": ("MessagesRequest", "MessagesReply", "AnthropicError"),
    "responses": ("ResponsesRequest", "ResponsesReply", "OpenAIError"),
}
"""The names of the schemas of a dialect's requests, replies and errors."""


def describe_turn_route(dialect: Dialect) -> Operation:
    """Describe the route that takes the turns of a dialect."""
    body, reply, error = _FORMS[dialect.name]
    paused = dialect.choose_status(EnginePausedError(""))
    return Operation(
        reply="The reply, recorded as a turn.",
        schema=reply,
        body=body,
        is_body_required=True,
        streams=True,
        error=error,
        fails=(404, 429, 502, paused, 504),
    )


def describe_token_count(dialect: Dialect) -> Operation:
    """Describe the route that counts the tokens of a dialect's prompts."""
    body, _, error = _FORMS[dialect.name]
    return Operation(
        reply="The length of the prompt.",
        schema="TokenCount",
        body=body,
        is_body_required=True,
        error=error,
        fails=(404,),
    )
