"""One HTTP exchange over plain ASGI.

1. A body is read whole, in one piece or many; memory stays bounded by the limit. A compressed one is refused unread.
2. A client that leaves is noticed: while it sends, while it waits, and before the end of the response.
3. A response has one content-length and says whether the client was still there; one whose status has no body has
   neither.
4. A response carries the id of its request once, whatever its handler sends.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from turnkeeper.errors import BodyTooLargeError, RequestError, UnsupportedEncodingError
from turnkeeper.http.exchange import Exchange
from turnkeeper.http.failure import answer_or_explain
from turnkeeper.service.turns import ClientGoneError


class Wire:
    """Both ends of a scripted connection: what the client sends, what it got."""

    def __init__(self, *messages: dict[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.incoming.put_nowait(message)
        self.sent: list[dict[str, Any]] = []
        scope = {"method": "POST", "path": "/x", "query_string": b"a=1", "headers": list(headers)}
        self.exchange = Exchange(scope, self.incoming.get, self._send)

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The headers of the response, but for the id of its request."""
        return {name: value for name, value in self.sent[0]["headers"] if name != b"x-request-id"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


async def test_a_body_in_parts_is_joined() -> None:
    wire = Wire(part(b"a", True), part(b"", True), part(b"b"))
    assert await wire.exchange.read_body(2) == b"ab"


async def test_a_body_over_the_limit_is_refused_before_its_end() -> None:
    wire = Wire(part(b"aa", True), part(b"bb", True))
    with pytest.raises(BodyTooLargeError, match="limit is 3") as caught:
        await wire.exchange.read_body(3)
    assert caught.value.http_status == 413


async def test_a_stated_length_over_the_limit_is_refused_unread() -> None:
    wire = Wire(headers=[(b"Content-Length", b"10")])
    with pytest.raises(BodyTooLargeError):
        await wire.exchange.read_body(3)


NO_LENGTHS = (b"-1", b"+1", b"1.0", b"1e1", b"0x1", b"1, 1", b"", b"\xb2", b"1 1", b"a" * 5000)


@pytest.mark.parametrize("stated", NO_LENGTHS)
async def test_a_stated_length_that_is_no_number_is_refused(stated: bytes) -> None:
    wire = Wire(headers=[(b"content-length", stated)])
    with pytest.raises(RequestError, match="content-length"):
        await wire.exchange.read_body(3)


LENGTHS = {
    "many zeros": (b"0" * 5000 + b"2", False),
    "zeros alone": (b"0" * 5000, False),
    "one too many": (b"4", True),
    "zeros before one too many": (b"0" * 5000 + b"4", True),
    "19 digits": (b"9" * 19, True),
    "5000 digits": (b"9" * 5000, True),
}


@pytest.mark.parametrize(("stated", "is_refused"), LENGTHS.values(), ids=LENGTHS.keys())
async def test_a_stated_length_is_read_however_many_digits_it_has(stated: bytes, is_refused: bool) -> None:
    wire = Wire(part(b"ab"), headers=[(b"content-length", stated)])
    if is_refused:
        with pytest.raises(BodyTooLargeError, match="limit is 3"):
            await wire.exchange.read_body(3)
    else:
        assert await wire.exchange.read_body(3) == b"ab"


CODINGS: dict[str, list[bytes]] = {
    "gzip": [b"gzip"],
    "zstd": [b"zstd"],
    "upper case": [b"GZIP"],
    "a list": [b"identity, br"],
    "two lines": [b"deflate", b"identity"],
    "unknown": [b"rot13"],
}


@pytest.mark.parametrize("codings", CODINGS.values(), ids=CODINGS.keys())
async def test_a_compressed_body_is_refused_unread(codings: list[bytes]) -> None:
    wire = Wire(headers=[(b"Content-Encoding", coding) for coding in codings])
    with pytest.raises(UnsupportedEncodingError, match="content-encoding") as caught:
        await wire.exchange.read_body(3)
    assert caught.value.http_status == 415


@pytest.mark.parametrize("coding", [b"identity", b" Identity ", b"", b"identity, identity"])
async def test_the_identity_encoding_is_none(coding: bytes) -> None:
    wire = Wire(part(b"a"), headers=[(b"content-encoding", coding)])
    assert await wire.exchange.read_body(3) == b"a"


async def test_a_client_that_leaves_while_sending_gets_no_answer() -> None:
    wire = Wire(part(b"a", True), GONE)
    with pytest.raises(ClientGoneError):
        await wire.exchange.read_body(3)


async def test_a_client_that_leaves_while_waiting_is_noticed() -> None:
    wire = Wire(part(b"a"))
    async with wire.exchange as exchange:
        await exchange.read_body(3)
        gone = asyncio.Event()
        exchange.watch()
        exchange.call_when_gone(gone.set)
        wire.incoming.put_nowait(GONE)
        await gone.wait()
        assert exchange.is_gone
        assert not await exchange.respond(200, b"late")


async def test_a_response_is_framed_and_known_to_be_delivered() -> None:
    wire = Wire(part(b""))
    async with wire.exchange as exchange:
        await exchange.read_body(3)
        exchange.watch()
        assert await exchange.respond(200, b"abc", {"content-type": "text/plain"})
    start = wire.sent[0]
    assert start["status"] == 200
    assert wire.fields == {b"content-type": b"text/plain", b"content-length": b"3"}
    assert wire.body == b"abc"
    assert [message.get("more_body") for message in wire.sent[1:]] == [True, False]


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_goes_out_without_one(status: int) -> None:
    wire = Wire(part(b""))
    assert await wire.exchange.respond(status, b"abc", {"etag": "x"})
    assert wire.fields == {b"etag": b"x"}
    assert wire.body == b""


async def test_a_watch_that_was_ended_calls_nobody() -> None:
    wire = Wire(part(b""))
    calls: list[int] = []
    async with wire.exchange as exchange:
        await exchange.read_body(3)
        exchange.watch()
        exchange.call_when_gone(lambda: calls.append(1))
    assert calls == []


CLOSED: dict[str, Exception] = {
    "reset": ConnectionResetError("reset by peer"),
    "broken pipe": BrokenPipeError(),
    "aborted": ConnectionAbortedError(),
    "another error of the socket": OSError("no route"),
    "a handle of uvloop": RuntimeError(
        "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
    ),
}


class ClosedWire(Wire):
    """Its client is gone after so many messages."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__(part(b""))
        self.error = error
        self.left = after

    async def _send(self, message: Any) -> None:
        if not self.left:
            raise self.error
        self.left -= 1
        await super()._send(message)


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("error", CLOSED.values(), ids=CLOSED.keys())
async def test_a_response_to_a_closed_connection_was_not_written(error: Exception, after: int) -> None:
    wire = ClosedWire(error, after)
    assert not await wire.exchange.respond(200, b"body")
    assert wire.exchange.is_gone


@pytest.mark.parametrize("error", CLOSED.values(), ids=CLOSED.keys())
async def test_a_part_for_a_closed_connection_says_that_the_client_is_gone(error: Exception) -> None:
    wire = ClosedWire(error, 1)
    await wire.exchange.start(200, [])
    for _ in range(2):
        with pytest.raises(ClientGoneError):
            await wire.exchange.write(b"part")
    assert not await wire.exchange.finish(b"end")


async def test_a_message_out_of_order_is_a_fault_of_the_server() -> None:
    wire = ClosedWire(RuntimeError("Unexpected ASGI message 'http.response.start'"), 0)
    with pytest.raises(RuntimeError):
        await wire.exchange.write(b"part")


@pytest.mark.parametrize("error", CLOSED.values(), ids=CLOSED.keys())
@pytest.mark.parametrize("raised", [None, RequestError("bad"), ValueError("odd"), ClientGoneError()])
async def test_whatever_is_said_to_a_closed_connection_is_no_fault(
    error: Exception, raised: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    wire = ClosedWire(error, 0)

    async def handle(exchange: Exchange) -> None:
        if raised is not None:
            raise raised
        await exchange.start(200, [])

    await answer_or_explain(wire.exchange, handle)
    assert "RuntimeError" not in caplog.text
    assert "OSError" not in caplog.text


async def test_the_id_of_the_request_takes_the_place_of_any_other() -> None:
    wire = Wire(headers=[(b"x-request-id", b"mine")])
    await wire.exchange.respond(200, b"", {"X-Request-Id": "the engine's", "a": "b"})
    headers = wire.sent[0]["headers"]
    assert [value for name, value in headers if name.lower() == b"x-request-id"] == [b"mine"]
    assert (b"a", b"b") in headers
