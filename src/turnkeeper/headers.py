"""The HTTP headers that more than one side of the server knows."""

from collections.abc import Mapping

JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
"""What a JSON body goes out with, to a client and to an engine."""

REQUEST_ID = "x-request-id"
"""The header that names one request: a client's own name for it, or the one that the server drew."""

RECEIPT = "x-turnkeeper-receipt"
"""The header of a collect's reply that holds its receipt."""

TRACE_HEADERS = (REQUEST_ID, "x-correlation-id", "traceparent", "tracestate")
"""The headers by which services trace a request: taken from an agent's request and sent along to the engine."""

STREAM_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Tells reverse proxies to pass events on as they come.
    "x-accel-buffering": "no",
}
"""What a stream of server-sent events goes out with."""
