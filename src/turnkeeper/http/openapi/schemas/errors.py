"""The schemas of errors, one for each form that an error has."""

from collections.abc import Iterable, Mapping

from turnkeeper.errors import ConfigError, TurnkeeperError
from turnkeeper.http.openapi.schemas.values import (
    TEXT,
    allow_null,
    build_object,
    refer,
)
from turnkeeper.jsontypes import JsonObject


def list_error_codes() -> list[str]:
    """List the code of every error that a response may carry, in the order of the tree of errors."""

    def walk(error: type[TurnkeeperError]) -> Iterable[str]:
        yield error.code
        for child in error.__subclasses__():
            if not issubclass(child, ConfigError) and child.__module__ == TurnkeeperError.__module__:
                yield from walk(child)

    return list(dict.fromkeys(walk(TurnkeeperError)))


ERROR_SCHEMAS: Mapping[str, JsonObject] = {
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
