"""Errors as Anthropic's clients know them. Pure.

Every 503 is sent as 529 ``overloaded_error``, which is what these clients wait and retry for. A prompt that is too long
has the sentence that makes them compact their conversation, and the code that frameworks over several APIs look for.
"""

from collections.abc import Mapping

from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.openai import choose_code
from turnkeeper.errors import ContextLengthError, TurnkeeperError

OVERLOADED = 529

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def choose_status(error: TurnkeeperError) -> int:
    """Choose the status of the error itself, save that 503 becomes 529."""
    return OVERLOADED if error.http_status == 503 else error.http_status


def render_error(error: TurnkeeperError) -> bytes:
    """Render ``{"type": "error", "error": {"type", "message", "code"}}``."""
    kind = _TYPES.get(choose_status(error), "api_error")
    body = {"type": kind, "message": _describe(error), "code": choose_code(error)}
    return encode_json({"type": "error", "error": body})


def _describe(error: TurnkeeperError) -> str:
    if not isinstance(error, ContextLengthError):
        return str(error)
    prompt, limit = error.facts.get("prompt_tokens"), error.facts.get("limit_tokens")
    if prompt is None or limit is None:
        return f"prompt is too long: {error}"
    return f"prompt is too long: {prompt} tokens > {limit} maximum"
