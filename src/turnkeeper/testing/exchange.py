"""One exchange of a scripted engine over HTTP: a request as it arrived, and its answer, cut short by a fault or not."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from turnkeeper.jsontypes import JsonObject
from turnkeeper.testing.script import Phase


class ConnectionCut(Exception):  # noqa: N818 - it is an event of the script, not a mistake
    """Raised out of the application where it runs without a socket that could be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """One request as it arrived."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in the order sent."""
    body: bytes
    json: JsonObject = field(default_factory=dict[str, Any])
    """The parsed body; empty where it is no JSON object."""

    def header(self, name: str) -> str | None:
        """Find the first header of this name, given in lower case."""
        return next((value for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """One HTTP answer, with the fault that cuts it short."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    fault: Phase | None = None


async def serve_lifespan(receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """Answer the protocol's lifespan messages."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


async def read_request(scope: Any, receive: Callable[[], Awaitable[Any]]) -> RecordedRequest:
    """Read the request, with its whole body."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = b"".join(chunks)
    try:
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = {}
    return RecordedRequest(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"].decode(),
        headers=tuple((name.decode("latin-1"), text.decode("latin-1")) for name, text in scope["headers"]),
        body=body,
        json=cast(JsonObject, value) if isinstance(value, dict) else {},
    )


async def send_answer(answer: ScriptedAnswer, send: Callable[[Any], Awaitable[None]]) -> None:
    """Send an answer, as far as its fault lets it."""
    if answer.fault is Phase.HEADERS:
        _cut_connection(send)
        return
    body = answer.body[: len(answer.body) // 2] if answer.fault is Phase.TRUNCATED else answer.body
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    given = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    kept = [pair for pair in headers if pair[0] not in {name for name, _ in given}]
    await send({"type": "http.response.start", "status": answer.status, "headers": kept + given})
    if answer.fault is Phase.BODY:
        await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        _cut_connection(send)
        return
    await send({"type": "http.response.body", "body": body})


def _cut_connection(send: object) -> None:
    """Close the socket under the application. uvicorn hands out a bound method of the object that holds it."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is None:
        raise ConnectionCut
    transport.close()
