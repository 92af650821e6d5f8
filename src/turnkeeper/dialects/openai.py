"""What chat completions and Responses share: fields of OpenAI's hosted service, and its error object. Pure."""

from collections.abc import Mapping

from turnkeeper.errors import ContextLengthError, TurnkeeperError
from turnkeeper.jsontypes import JsonObject

HOSTED_FIELDS: frozenset[str] = frozenset(
    {"metadata", "user", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""Fields of both requests that do the bookkeeping of a hosted service and have no effect on a reply."""

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


def choose_code(error: TurnkeeperError) -> str:
    """Choose the code by which clients know the error."""
    return "context_length_exceeded" if isinstance(error, ContextLengthError) else error.code


def build_error(error: TurnkeeperError) -> JsonObject:
    """Build ``{"error": {"message", "type", "code", "param"}}``."""
    kind = _TYPES.get(error.http_status, "server_error")
    return {
        "error": {
            "message": str(error),
            "type": kind,
            "code": choose_code(error),
            "param": error.facts.get("param"),
        }
    }
