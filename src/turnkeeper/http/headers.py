"""What request headers say about a turn, and what error responses say in headers. Pure.

Headers between the server and its engines are the engines' own matter.
"""

from collections.abc import Mapping

from turnkeeper.errors import TurnkeeperError

HARNESS_HEADERS = (
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "session-id",
    "thread-id",
    "x-session-id",
    "x-session-affinity",
    "x-parent-session-id",
)
"""Headers by which known harnesses name a conversation; kept with a turn for its label."""

TRACE_HEADERS = ("x-request-id", "x-correlation-id", "traceparent", "tracestate")
"""Headers that go along to the engine."""


def select_harness_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that name a conversation."""
    return {name: headers[name] for name in HARNESS_HEADERS if name in headers}


def select_trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that trace a request across services."""
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}


def read_session_key(headers: Mapping[str, str]) -> str | None:
    """The key that stands for a session where the path names none: a bearer token or ``x-api-key``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or None


def build_error_headers(error: TurnkeeperError) -> dict[str, str]:
    """What tells a client whether to try again.

    ``Retry-After`` goes with 429 and a 503 that passes; everything that stays refused says ``x-should-retry: false``.
    """
    if error.retry_after_s is not None:
        return {"retry-after": str(error.retry_after_s)}
    if error.is_retryable:
        return {}
    return {"retry-after": "1"} if error.http_status == 429 else {"x-should-retry": "false"}
