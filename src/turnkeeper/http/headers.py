"""The headers of a request that concern its turn, and those of a response that is an error. Pure.

Headers between the server and its engines are the engines' own matter.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from turnkeeper.core.agent import HARNESS_HEADERS
from turnkeeper.core.idempotency import read_retry_marks
from turnkeeper.core.turn import RetryMarks
from turnkeeper.errors import MethodNotAllowedError, TurnkeeperError, UnsupportedEncodingError
from turnkeeper.headers import REQUEST_ID, TRACE_HEADERS

KEPT_CHARACTERS = 256
"""How many characters of a header are kept with a turn; conversation ids and idempotency keys have a few dozen."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@~-]{1,128}")
"""The request ids that are kept as they come: they stand in logs, in traces and in the engines' requests."""


def shorten_header(value: str) -> str:
    """Shorten a header's value to what is kept: a long one ends with its digest, so that two values stay different."""
    if len(value) <= KEPT_CHARACTERS:
        return value
    digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{value[: KEPT_CHARACTERS - len(digest) - 1]}~{digest}"


def select_harness_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Select the headers that name an agent and its conversation, and shorten their values."""
    return {name: shorten_header(headers[name]) for name in HARNESS_HEADERS if name in headers}


def read_marks(headers: Mapping[str, str]) -> RetryMarks:
    """Parse the headers by which a client marks a request as a retry."""
    marks = read_retry_marks(headers)
    return replace(marks, key=shorten_header(marks.key)) if len(marks.key) > KEPT_CHARACTERS else marks


def is_request_id(sent: str) -> bool:
    """Tell whether a client's ``X-Request-Id`` is short and plain enough to be kept."""
    return _REQUEST_ID.fullmatch(sent) is not None


def select_trace_headers(headers: Mapping[str, str], request_id: str) -> dict[str, str]:
    """Select the headers that trace a request across services, under the id that the server gave the request."""
    return {name: headers[name] for name in TRACE_HEADERS if name in headers} | {REQUEST_ID: request_id}


def list_session_keys(headers: Mapping[str, str]) -> tuple[str, ...]:
    """List the keys that a request carries: a bearer token, ``x-api-key``.

    Some clients send both, one of them left over from another account.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token if scheme.lower() == "bearer" else ""
    return tuple(key for each in (bearer, headers.get("x-api-key", "")) if (key := each.strip(" \t")))


def build_error_headers(error: TurnkeeperError) -> dict[str, str]:
    """Build the headers that tell a client whether to try again.

    ``Retry-After`` goes with 429 and a 503 that passes; everything that stays refused says ``x-should-retry: false``.
    The refusal of a compressed body also names the one encoding that is taken, that of a method those of the route.
    """
    if error.retry_after_s is not None:
        return {"retry-after": str(error.retry_after_s)}
    if error.is_retryable:
        return {}
    if error.http_status == 429:
        return {"retry-after": "1"}
    return {**_list_what_is_taken(error), "x-should-retry": "false"}


def _list_what_is_taken(error: TurnkeeperError) -> dict[str, str]:
    if isinstance(error, UnsupportedEncodingError):
        return {"accept-encoding": "identity"}
    if isinstance(error, MethodNotAllowedError):
        return {"allow": ", ".join(error.facts["allowed"])}
    return {}
