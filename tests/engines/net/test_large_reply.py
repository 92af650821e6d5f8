"""Large replies, read in a thread of their own.

1. A sink gets the same body as from any other call, however the server frames it; all of it in one other thread.
2. A body that is cut short, late, or given up is what it is for small replies, and its connection is closed.
3. While a smaller body comes in, a larger one waits a little after each buffer.
4. An engine call that will bring many rows is read so, and gives the same generation.
"""

import asyncio
import base64
import contextlib
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from engines.builders import make_request, spell_payload
from turnkeeper.channels.routing import RowsRequest
from turnkeeper.engines import EngineClient, GenerateRequest, SglangEngine
from turnkeeper.engines.engine import LARGE_ROWS
from turnkeeper.engines.net.large_reply import GIVE_WAY_S, LARGE_BYTES, LargeReplyScheduler
from turnkeeper.engines.reply import ReplyBody
from turnkeeper.errors import EngineError, EngineTimeoutError
from turnkeeper.testing import MoeShape, ScriptedEngine, ScriptedReply, running

IDS = np.arange(LARGE_BYTES // 5, dtype="<i4") % 128
PAYLOAD = base64.b64encode(IDS.tobytes())
BODY = b'{"a": "b", "routed_experts": "' + PAYLOAD + b'", "c": [1, 2]}'


@dataclass
class RawServer:
    """Answers every request with ready bytes, then waits for the other side to close."""

    answer: bytes
    requests: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while head := await reader.readline():
                while head.strip():
                    head = await reader.readline()
                await reader.readexactly(2)
                self.requests += 1
                writer.write(self.answer)
        self.closed.set()
        writer.close()


@asynccontextmanager
async def serving(answer: bytes) -> AsyncGenerator[tuple[str, RawServer]]:
    raw = RawServer(answer)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/generate", raw


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient(timeout_s=20.0)
    yield client
    await client.close()


class Sink(ReplyBody):
    """Remembers the threads that fed it, and says when a payload has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()
        self.has_payload = threading.Event()

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        self.threads.add(threading.current_thread().name)
        super().feed(chunk)
        if self.payloads:
            self.has_payload.set()


def sized(body: bytes, *, status: int = 200, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (sized(BODY), 200),
        (chunked(BODY, 1 << 17), 200),
        (sized(BODY, headers="connection: close\r\n"), 200),
        (sized(BODY, headers="content-encoding: identity\r\n"), 200),
        (sized(BODY, status=500), 500),
    ],
    ids=["sized", "chunked", "last-of-its-connection", "with-an-encoding", "an-error"],
)
async def test_a_sink_gets_the_same_body(answer: bytes, status: int, client: EngineClient) -> None:
    async with serving(answer) as (url, _):
        for is_large, thread in ((False, threading.current_thread().name), (True, "large replies")):
            sink = Sink()
            reply = await client.call_into(sink, url, body=b"{}", is_large=is_large)
            assert (reply.status, bytes(reply.body)) == (status, b'{"a": "b", "routed_experts": 0, "c": [1, 2]}')
            assert base64.b64decode(spell_payload(sink.payloads[0])) == IDS.tobytes()
            assert sink.threads == {thread}


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * LARGE_BYTES], ids=["empty", "small", "just-large"])
async def test_a_body_of_any_size_is_read_whole(body: bytes, client: EngineClient) -> None:
    async with serving(sized(body)) as (url, _):
        sink = ReplyBody()
        await client.call_into(sink, url, body=b"{}", is_large=True)
        assert bytes(sink.text) == body


async def test_calls_go_on_behind_a_large_one(client: EngineClient) -> None:
    async with serving(sized(BODY)) as (url, raw):
        replies = [client.call_into(Sink(), url, body=b"{}", is_large=bool(number % 2)) for number in range(8)]
        assert [reply.status for reply in await asyncio.gather(*replies)] == [200] * 8
        assert raw.requests == 8


@pytest.mark.parametrize("kept", [0, 1, LARGE_BYTES // 2, len(BODY) - 1])
async def test_a_body_cut_short_is_an_engine_error(kept: int, client: EngineClient) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(sized(BODY)[: len(sized(BODY)) - len(BODY) + kept])
        writer.close()

    server = await asyncio.start_server(cut, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(EngineError, match="broke off its reply") as caught:
            await client.call_into(Sink(), url, body=b"{}", is_large=True)
    assert caught.value.facts["url"] == url
    assert "accepted" not in caught.value.facts


async def test_a_body_that_does_not_end_in_time_is_a_timeout() -> None:
    client = EngineClient(timeout_s=0.2)
    async with serving(sized(BODY)[:-1]) as (url, raw):
        with pytest.raises(EngineTimeoutError, match=r"0\.2 s"):
            await client.call_into(Sink(), url, body=b"{}", is_large=True)
        await asyncio.wait_for(raw.closed.wait(), 5)
    await client.close()


@pytest.mark.parametrize("is_closed", [False, True], ids=["cancelled", "client-closed"])
async def test_a_body_that_is_given_up_closes_its_connection(is_closed: bool, client: EngineClient) -> None:
    async with serving(sized(BODY)[:-1]) as (url, raw):
        sink = Sink()
        call = asyncio.create_task(client.call_into(sink, url, body=b"{}", is_large=True))
        assert await asyncio.to_thread(sink.has_payload.wait, 5)
        if is_closed:
            await client.close()
        else:
            call.cancel()
        await asyncio.wait_for(raw.closed.wait(), 5)
        with pytest.raises((EngineError, asyncio.CancelledError)):
            await call


def test_a_larger_body_gives_way_to_a_smaller_one() -> None:
    scheduler = LargeReplyScheduler()
    scheduler.update("large", 200)
    assert scheduler.choose_pause_s("large") == 0
    scheduler.update("small", 20)
    assert (scheduler.choose_pause_s("large"), scheduler.choose_pause_s("small")) == (GIVE_WAY_S, 0)
    scheduler.update("large", 10)
    assert (scheduler.choose_pause_s("large"), scheduler.choose_pause_s("small")) == (0, GIVE_WAY_S)
    scheduler.remove("large")
    assert scheduler.choose_pause_s("small") == 0


def _ask(prompt_tokens: int, start_len: int | None = None) -> GenerateRequest:
    rows = RowsRequest(start_len=start_len, held_rows=start_len or 0)
    return make_request(prompt=[7] * prompt_tokens, rows=rows)


def test_a_reply_is_large_by_the_rows_that_it_will_bring() -> None:
    assert _ask(LARGE_ROWS).expects_large_reply
    assert not _ask(LARGE_ROWS - 1).expects_large_reply
    assert not _ask(LARGE_ROWS + 100, start_len=101).expects_large_reply
    assert not make_request(prompt=[7] * LARGE_ROWS).expects_large_reply
    assert make_request(prompt=[7] * LARGE_ROWS, wants_indexer=True).expects_large_reply


def _is_thread_there() -> bool:
    return any(thread.name == "large replies" for thread in threading.enumerate())


async def test_an_engine_call_gives_the_same_generation(client: EngineClient) -> None:
    engine = ScriptedEngine(default=ScriptedReply(text="same"), moe=MoeShape(layers=48, topk=8, experts=128))
    async with running(engine) as url:
        small = await SglangEngine(url, client).generate(_ask(LARGE_ROWS - 1))
        assert not _is_thread_there()
        large = await SglangEngine(url, client).generate(_ask(LARGE_ROWS))
        assert _is_thread_there()
    assert large.ids.tolist() == small.ids.tolist()
    row = 48 * 8 * 4
    first, second = (base64.b64decode(spell_payload(each.payloads.get("routed_experts"))) for each in (small, large))
    assert (len(second) - len(first), second[: row * 4000]) == (row, first[: row * 4000])
