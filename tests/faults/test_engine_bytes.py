"""What may come over the wire from an engine, or from a proxy before it: any bytes at all.

1. Every call ends in time, in a generation or in one of our errors; the event loop never stops.
2. The calls that follow, on the same connection or another one, are sound.
3. So it is for any status, body and framing, and wherever the connection ends.

The time for random combinations is fixed; the plain ones are all tried.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import orjson
import pytest

from engines.builders import make_request
from turnkeeper.channels.routing import RowsRequest
from turnkeeper.engines import (
    Engine,
    EngineClient,
    GenerateRequest,
    Generation,
    RelayReply,
    RelayRequest,
    SglangEngine,
    SglangGenerateEngine,
    VllmEngine,
    check_generation,
)
from turnkeeper.engines.engine import LARGE_ROWS
from turnkeeper.errors import TurnkeeperError

BUDGET_S = 6.0
"""For the random combinations."""
LATE_S = 0.08
"""The engine timeout here: how long a body that never ends is waited for."""
STUCK_S = 60.0
"""By then everything is over, or the event loop is stuck."""

PAIRS = [[-0.5, 20, "a"], [-0.25, 21, "b"]]
META = {
    "id": "r",
    "finish_reason": {"type": "stop", "matched": 21},
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "cached_tokens": 0,
    "weight_version": "1",
    "output_token_logprobs": PAIRS,
}
CHAT = {"choices": [{"message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop", "meta_info": META}]}
GENERATE = {"text": "ab", "output_ids": [20, 21], "meta_info": META}
VLLM = {
    "request_id": "r",
    "choices": [
        {
            "token_ids": [20, 21],
            "finish_reason": "stop",
            "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]},
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
}


def parse(request: GenerateRequest, ids: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "ab"}


def spell_stream(reply: Any) -> bytes:
    return b"data: " + orjson.dumps(reply) + b"\n\ndata: [DONE]\n\n"


@dataclass(frozen=True, kw_only=True)
class Route:
    """One way of calling an engine, and what a sound engine answers."""

    build: Callable[[str, EngineClient], Engine]
    good: bytes
    streams: bool = False
    is_large: bool = False
    """Whether the reply is read in a thread of its own."""

    async def call(self, engine: Engine) -> Generation:
        many = {"prompt": range(LARGE_ROWS), "rows": RowsRequest(start_len=None, held_rows=0)} if self.is_large else {}
        request = make_request(**many)
        generation = await engine.generate(request, on_ids=(lambda ids: None) if self.streams else None)
        check_generation(generation, request)
        return generation


ROUTES = {
    "chat": Route(build=SglangEngine, good=orjson.dumps(CHAT)),
    "chat, large": Route(
        build=SglangEngine,
        good=orjson.dumps(CHAT).replace(b'"prompt_tokens":5', b'"prompt_tokens":%d' % LARGE_ROWS),
        is_large=True,
    ),
    "generate": Route(build=lambda url, client: SglangGenerateEngine(url, client, parse), good=orjson.dumps(GENERATE)),
    "generate, streamed": Route(
        build=lambda url, client: SglangGenerateEngine(url, client, parse), good=spell_stream(GENERATE), streams=True
    ),
    "vllm": Route(build=lambda url, client: VllmEngine(url, client, parse), good=orjson.dumps(VLLM)),
    "vllm, streamed": Route(
        build=lambda url, client: VllmEngine(url, client, parse), good=spell_stream(VLLM), streams=True
    ),
}


class RawServer:
    """Answers with whatever bytes it is given, or soundly while it is given none."""

    def __init__(self, good: bytes) -> None:
        self.good = frame_sized(200, good)
        self.answer: bytes | None = None
        self.closes = False
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(lengths[0].split(b":")[1]) if lengths else 0)
                writer.write(self.good if self.answer is None else self.answer)
                await writer.drain()
                if self.answer is not None and self.closes:
                    break
        self._writers.discard(writer)
        writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def serving(route: Route) -> AsyncGenerator[tuple[RawServer, Engine]]:
    raw = RawServer(route.good)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    client = EngineClient(timeout_s=LATE_S)
    try:
        yield raw, route.build(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", client)
    finally:
        await client.close()
        server.close()
        raw.hang_up()


def run_apart(work: Callable[[], Awaitable[int]]) -> int:
    """Run in an event loop of a thread of its own, so that one that is stuck fails the test instead of hanging it.

    Also fails where the loop was held up for longer than a second.
    """
    results: list[Any] = []

    async def watch() -> int:
        task = asyncio.ensure_future(work())
        last, worst = time.monotonic(), 0.0
        while not task.done():
            await asyncio.wait([task], timeout=0.02)
            worst, last = max(worst, time.monotonic() - last), time.monotonic()
        assert worst < 5.0, f"the event loop was held up for {worst:.1f} s"
        return await task

    def run() -> None:
        try:
            results.append(asyncio.run(watch()))
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(STUCK_S)
    assert not thread.is_alive(), f"the event loop is stuck at {AT[0]}"
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


AT: list[Any] = [None]
"""What is tried at the moment, for the message."""


async def try_answer(raw: RawServer, engine: Engine, route: Route, answer: bytes, *, closes: bool) -> None:
    """Two calls with this answer, then a sound one."""
    raw.answer, raw.closes = answer, closes
    for _ in range(2):
        with contextlib.suppress(TurnkeeperError):
            await route.call(engine)
    raw.answer = None
    for attempt in range(3):
        try:
            assert (await route.call(engine)).ids.tolist() == [20, 21]
        except TurnkeeperError:  # bytes of the answer before may still come in on its connection
            assert attempt < 2, "sound answers are refused after this"
        else:
            return


# Framing.


def frame_sized(status: int | str, body: bytes, *headers: str) -> bytes:
    return frame(status, body, f"Content-Length: {len(body)}", *headers)


def frame(status: int | str, body: bytes, *headers: str, version: str = "HTTP/1.1") -> bytes:
    lines = [f"{version} {status} X", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunk(body: bytes, size: int = 7) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


CHUNKED = "Transfer-Encoding: chunked"
PLAIN: dict[str, Callable[[Any, bytes], bytes]] = {
    "sized": frame_sized,
    "until the end": frame,
    "chunked": lambda status, body: frame(status, chunk(body) + b"0\r\n\r\n", CHUNKED),
    "HTTP/1.0": lambda status, body: frame(status, body, version="HTTP/1.0"),
}
ODD: dict[str, Callable[[Any, bytes], bytes]] = {
    "too short": lambda status, body: frame(status, body, f"Content-Length: {max(0, len(body) - 3)}"),
    "too long": lambda status, body: frame(status, body, f"Content-Length: {len(body) + 3}"),
    "huge": lambda status, body: frame(status, body, f"Content-Length: {1 << 40}"),
    "negative": lambda status, body: frame(status, body, "Content-Length: -1"),
    "no number": lambda status, body: frame(status, body, "Content-Length: many"),
    "many digits": lambda status, body: frame(status, body, f"Content-Length: {'9' * 5000}"),
    "two lengths": lambda status, body: frame_sized(status, body, "Content-Length: 1"),
    "length and chunks": lambda status, body: frame(status, chunk(body) + b"0\r\n\r\n", CHUNKED, "Content-Length: 5"),
    "chunked, no end": lambda status, body: frame(status, chunk(body), CHUNKED),
    "chunked, cut": lambda status, body: frame(status, chunk(body)[:-4], CHUNKED),
    "chunked, no size": lambda status, body: frame(status, b"zz\r\n" + chunk(body), CHUNKED),
    "chunked, huge size": lambda status, body: frame(status, b"f" * 15 + b"\r\n" + body, CHUNKED),
    "chunked, byte by byte": lambda status, body: frame(status, chunk(body, 1) + b"0\r\n\r\n", CHUNKED),
    "chunked, trailers": lambda status, body: frame(status, chunk(body) + b"0\r\nA: b\r\n\r\n", CHUNKED),
    "chunked, empty": lambda status, body: frame(status, b"0\r\n\r\n" + body, CHUNKED),
    "unknown coding": lambda status, body: frame_sized(status, body, "Transfer-Encoding: rot13"),
    "compressed, and not": lambda status, body: frame_sized(status, body, "Content-Encoding: gzip"),
    "closes": lambda status, body: frame_sized(status, body, "Connection: close"),
    "upgrades": lambda status, body: frame_sized(status, body, "Connection: upgrade", "Upgrade: h2c"),
    "a large header": lambda status, body: frame_sized(status, body, f"X-A: {'a' * 70_000}"),
    "a broken header": lambda status, body: frame_sized(status, body, "no colon"),
    "a header that is no text": lambda status, body: frame_sized(status, body, "X-A: \x00\x7f"),
    "many headers": lambda status, body: frame_sized(status, body, *(f"X-{n}: a" for n in range(2000))),
    "redirects": lambda status, body: frame_sized(status, body, "Location: /"),
    "waits": lambda status, body: frame_sized(status, body, f"Retry-After: {'9' * 5000}"),
    "two replies": lambda status, body: frame_sized(status, body) * 2,
    "informs first": lambda status, body: frame(103, b"") + frame_sized(status, body),
    "informs for ever": lambda status, body: frame(102, b"") * 500,
    "HTTP/0.9": lambda status, body: body,
    "HTTP/2": lambda status, body: b"\x00\x00\x12\x04" + b"\x00" * 21 + body,
    "no version": lambda status, body: frame(status, body, version="ICY"),
    "bare line feeds": lambda status, body: frame_sized(status, body).replace(b"\r\n", b"\n"),
    "nothing": lambda status, body: b"",
}
STATUSES: list[int | str] = [
    *(100, 101, 102, 103, 199, 200, 201, 202, 203, 204, 205, 206, 226, 299, 300, 301, 302, 304, 307, 308),
    *(400, 401, 403, 404, 405, 407, 408, 409, 411, 413, 414, 415, 422, 425, 429, 431, 451, 499),
    *(500, 501, 502, 503, 504, 505, 507, 511, 520, 599, 600, 999, "000", "20", "2000", "-1", "abc", ""),
]
BODIES: dict[str, bytes] = {
    "empty": b"",
    "space": b" \r\n",
    "null": b"null",
    "an array": b"[]",
    "a number": b"1",
    "an empty object": b"{}",
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "no UTF-8": b"\xff\xfe\x00{",
    "deep": b"[" * 5000,
    "long digits": b'{"message": "context length of ' + b"9" * 5000 + b' tokens"}',
    "paused": b'{"error": {"message": "Generation is paused"}}',
    "an error of odd types": b'{"error": {"message": [1], "code": true}}',
    "events without data": b": hi\n\n" * 50,
    "events of nothing": b"data:\n\ndata: {}\n\ndata: null\n\n",
    "an error event": b'data: {"error": {"message": "x", "code": 1e999}}\n\n',
    "only the end": b"data: [DONE]\n\n",
}


def list_answers(route: Route, statuses: Iterable[Any], framings: Iterable[Any]) -> list[tuple[Any, str, Any]]:
    bodies = {**BODIES, "good": route.good, "cut": route.good[: len(route.good) // 2]}
    return list(product(statuses, bodies, framings))


@pytest.mark.parametrize("route", ["chat", "chat, large", "generate, streamed"])
def test_no_status_without_a_body_stops_the_loop(route: str) -> None:
    """Replies that must not have a body, and others that have none, twice on one connection."""

    async def work() -> int:
        async with serving(ROUTES[route]) as (raw, engine):
            for status, name in product([204, 304, 101, 200, 205, 404, 500], [*PLAIN, "nothing", "informs first"]):
                AT[0] = (status, name)
                answer = {**PLAIN, **ODD}[name](status, b"")
                is_ended = name in ("until the end", "nothing") or status == 101
                await try_answer(raw, engine, ROUTES[route], answer, closes=is_ended)
        return 1

    assert run_apart(work)


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())
def test_no_combination_of_status_body_and_framing_stops_the_loop(route: Route) -> None:
    framings = {**PLAIN, **ODD}
    answers = list_answers(route, STATUSES, framings)
    random.Random(7).shuffle(answers)

    async def work() -> int:
        count, end = 0, time.monotonic() + BUDGET_S / len(ROUTES)
        async with serving(route) as (raw, engine):
            for status, body, framing in answers:
                if time.monotonic() > end:
                    break
                AT[0] = (status, body, framing)
                whole = {**BODIES, "good": route.good, "cut": route.good[: len(route.good) // 2]}[body]
                await try_answer(raw, engine, route, framings[framing](status, whole), closes=count % 8 != 0)
                count += 1
        return count

    assert run_apart(work) > 10


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())
@pytest.mark.parametrize("framing", ["sized", "chunked"])
def test_a_connection_that_ends_anywhere_is_an_error_of_that_turn(route: Route, framing: str) -> None:
    async def work() -> int:
        whole = PLAIN[framing](200, route.good)
        async with serving(route) as (raw, engine):
            for size in range(0, len(whole), 3):
                AT[0] = size
                raw.answer, raw.closes = whole[:size], True
                with contextlib.suppress(TurnkeeperError):
                    assert (await route.call(engine)).ids.tolist() == [20, 21]  # all that is read was there
                raw.answer = None
            assert (await route.call(engine)).ids.tolist() == [20, 21]
        return 1

    assert run_apart(work)


def test_no_reply_to_other_calls_stops_the_loop() -> None:
    """Probes, aborts and relayed calls."""
    route = ROUTES["chat"]

    async def work() -> int:
        async with serving(route) as (raw, engine):
            for status, framing, body in product([200, 204, 404], {**PLAIN, **ODD}, ["empty", "null"]):
                AT[0] = (status, framing, body)
                raw.answer, raw.closes = {**PLAIN, **ODD}[framing](status, BODIES[body]), True
                await engine.abort("rid-1")
                reports = await engine.fetch_status()
                assert len(reports) == 1
                with contextlib.suppress(TurnkeeperError):
                    reply = await engine.relay(RelayRequest(method="GET", path="/x", session_id="s"))
                    assert isinstance(reply, RelayReply)
        return 1

    assert run_apart(work)
