"""Requests that do not come in, and connections that are too many.

1. A head that does not come in time, and a body that neither ends nor goes on, are a 408 in the caller's form, and the
   connection is closed; a connection that says nothing is closed without a word.
2. A body that goes on is never too slow, however long it takes in all.
3. A request takes its place in flight once its body is there.
4. A head that is too large, by its lines or by their number, is a 431, whether or not it ends. So are trailers, and the
   line before a chunk. Trailers are no headers, whatever they say.
5. One address has a limit of connections: one more is told so and closed, and a place becomes free with each that ends.
6. What is refused is counted by its code.
7. A request whose connection brings something bad behind it is answered all the same, and its answer is the last one.
   One that waits for its answer with another behind it sees its client leave.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import orjson
import pytest

from httpkit import Site, running_site
from servicekit import user
from turnkeeper.http.connection_limits import HEAD_BYTES, MAX_HEADERS, PROGRESS_BYTES, find_dialect
from turnkeeper.testing import ScriptedEngine, ScriptedReply

SHORT_S = 0.2
BODY = orjson.dumps({"messages": [user("a")]})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a raw connection got before it was closed."""

    status: int
    headers: bytes
    body: bytes

    def json(self) -> dict[str, object]:
        return orjson.loads(self.body)


@contextlib.asynccontextmanager
async def connecting(site: Site) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = site.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_end(reader: asyncio.StreamReader) -> Answer | None:
    """The answer; returns when the server has closed the connection."""
    async with asyncio.timeout(20):
        data = await reader.read()
    if not data:
        return None
    head, _, body = data.partition(b"\r\n\r\n")
    return Answer(int(head.split(b" ", 2)[1]), head.lower(), body)


async def exchange(site: Site, *pieces: bytes) -> Answer | None:
    async with connecting(site) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await read_end(reader)


def spell_head(path: str, *headers: bytes, end: bytes = b"\r\n") -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: x\r\n" % path.encode() + b"".join(h + b"\r\n" for h in headers) + end


HEAD_CUTS = {
    "nothing": b"",
    "a letter": b"P",
    "a request line": b"POST /v1/messages HTTP/1.1\r\n",
    "half a header": b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api",
    "all but the end": b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n",
    "an offer of HTTP/2": b"POST /v1/messages HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n",
}


@pytest.mark.parametrize("sent", HEAD_CUTS.values(), ids=HEAD_CUTS.keys())
async def test_half_a_head_is_given_up(sent: bytes) -> None:
    async with running_site(read_timeout=SHORT_S) as site:
        answer = await exchange(site, sent)
        if not sent:
            assert answer is None
            return
        assert answer is not None
        assert answer.status == 408
        assert b"connection: close" in answer.headers
        if b"messages" in sent:
            assert answer.json()["type"] == "error"
        assert (
            'turnkeeper_errors_total{code="request_timeout"} 1.0' in (await site.call("GET", "/metrics")).body.decode()
        )


BODY_CUTS = {
    "no byte of it": (b"content-length: 100", b""),
    "half of it": (b"content-length: 100", b'{"messages": ['),
    "all but one byte": (b"content-length: %d" % len(BODY), BODY[:-1]),
    "no chunk": (b"transfer-encoding: chunked", b""),
    "half a chunk": (b"transfer-encoding: chunked", b"ff\r\n{"),
    "no last chunk": (b"transfer-encoding: chunked", b"%x\r\n%s\r\n" % (len(BODY), BODY)),
    "nothing after 100-continue": (b"content-length: 100\r\nexpect: 100-continue", b""),
    "half of it behind an offer of HTTP/2": (b"content-length: 99\r\nconnection: Upgrade\r\nupgrade: h2c", b"{"),
}
PATHS = {"v1/chat/completions": "error", "v1/messages": "type", "v1/responses/input_tokens": "error", "samples": "code"}


@pytest.mark.parametrize(("header", "sent"), BODY_CUTS.values(), ids=BODY_CUTS.keys())
async def test_half_a_body_is_given_up(header: bytes, sent: bytes) -> None:
    async with running_site(read_timeout=SHORT_S, max_in_flight=1) as site:
        session = await site.create()
        for path, key in PATHS.items():
            async with connecting(site) as (reader, writer):
                writer.write(spell_head(f"{session}/{path}", header) + sent)
                await writer.drain()
                assert (await site.chat(session, [user("b")])).status == 200, "the half request takes no place"
                answer = await read_end(reader)
            assert answer is not None
            told = answer.body[answer.body.index(b"HTTP/1.1 408") :] if answer.status == 100 else b""
            assert answer.status == 408 or told
            assert key in orjson.loads(told.partition(b"\r\n\r\n")[2] or answer.body)
        assert not site.find_entry(session.rpartition("/")[2]).in_flight


async def test_a_body_that_goes_on_is_never_too_slow() -> None:
    async with running_site(read_timeout=SHORT_S) as site:
        session = await site.create()
        body = orjson.dumps({"messages": [user("a b " * PROGRESS_BYTES)]})
        async with connecting(site) as (reader, writer):
            writer.write(spell_head(f"{session}/v1/chat/completions", b"content-length: %d" % len(body)))
            start = asyncio.get_running_loop().time()
            for place in range(0, len(body), 6000):
                writer.write(body[place : place + 6000])
                await writer.drain()
                await asyncio.sleep(SHORT_S / 10)  # so long that in all it takes longer than the timeout
            assert asyncio.get_running_loop().time() - start > SHORT_S
            assert b"408" not in await reader.readuntil(b"\r\n")


async def test_a_client_that_is_refused_early_and_goes_on_slowly_is_cut() -> None:
    async with running_site(read_timeout=SHORT_S) as site:
        answer = await exchange(site, spell_head(f"/sessions/{'0' * 32}/v1/messages", b"content-length: 100"), b"{")
        assert answer is not None
        assert answer.status == 404
        assert answer.json()["type"] == "error"


async def test_a_client_that_closes_behind_the_response_reads_why_its_body_was_refused() -> None:
    async with running_site(max_turn_body_bytes=1000) as site:
        body = b"x" * 8_000_000
        for path, status in ((f"/sessions/{'0' * 32}", 404), (await site.create(), 413)):
            head = spell_head(f"{path}/v1/messages", b"connection: close", b"content-length: %d" % len(body))
            answer = await exchange(site, head, body)
            assert answer is not None
            assert answer.status == status


LARGE = {
    "one header": [b"x-a: " + b"a" * HEAD_BYTES],
    "a harness header": [b"session-id: " + b"a" * HEAD_BYTES],
    "a key": [b"authorization: Bearer " + b"a" * HEAD_BYTES],
    "an idempotency key": [b"idempotency-key: " + b"a" * HEAD_BYTES],
    "a header's name": [b"a" * HEAD_BYTES + b": x"],
    "many headers": [b"x-%d: %s" % (number, b"a" * 1000) for number in range(100)],
}
"""Headers that are too large by their lines, so that the end of the head need not come."""
NUMEROUS = {
    "many short headers": [b"x: 1"] * (MAX_HEADERS + 1),
    "many cookies": [b"cookie: a=b"] * (MAX_HEADERS + 1),
}
"""Headers that are too many, which is known at the end of the head."""
HEADS = {f"{name}, whole": (headers, b"\r\n") for name, headers in (LARGE | NUMEROUS).items()} | {
    f"{name}, without an end": (headers, b"x-more: " + b"b" * 300_000) for name, headers in LARGE.items()
}


@pytest.mark.parametrize(("headers", "end"), HEADS.values(), ids=HEADS.keys())
async def test_a_head_that_is_too_large_is_refused(headers: list[bytes], end: bytes) -> None:
    async with running_site(read_timeout=5) as site:
        head = spell_head("/v1/messages", *headers, end=end)
        answer = await exchange(site, head)
        assert answer is not None
        assert answer.status == 431
        assert answer.json()["type"] == "error"
        assert b"x-should-retry: false" in answer.headers
        assert (await site.call("GET", "/health")).status == 200


async def test_a_request_line_that_is_too_long_is_refused() -> None:
    async with running_site() as site:
        answer = await exchange(site, b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer is not None
        assert answer.status == 431
        assert answer.json()["code"] == "header_too_large"


async def test_a_head_below_the_limit_is_taken() -> None:
    async with running_site() as site, connecting(site) as (reader, writer):
        writer.write(spell_head("/sessions", b"x-a: " + b"a" * (HEAD_BYTES - 200), b"content-length: 0"))
        assert b"200" in await reader.readuntil(b"\r\n")


CHUNKS = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
ENDLESS = {
    "a trailer": [CHUNKS, b"x: " + b"a" * 1_000_000],
    "a trailer's name": [CHUNKS, b"a" * 1_000_000],
    "many trailers": [CHUNKS, b"x: 1\r\n" * 200_000],
    "the line before a chunk": [b"5;x=" + b"a" * 1_000_000],
    "the line before a later chunk": [b"1\r\n{\r\n5;x=", *[b"a" * 100_000] * 10],
    "the size of a chunk": [b"0" * 1_000_000],
}


@pytest.mark.parametrize("pieces", ENDLESS.values(), ids=ENDLESS.keys())
async def test_what_surrounds_a_body_in_chunks_is_bounded(pieces: list[bytes]) -> None:
    async with running_site(ScriptedEngine(default=ScriptedReply(wait=asyncio.Event())), read_timeout=5) as site:
        session = await site.create()
        head = spell_head(f"{session}/v1/chat/completions", b"transfer-encoding: chunked")
        answer = await exchange(site, head, *pieces)
        assert answer is not None
        assert answer.status == 431
        assert "request line and headers, or trailers" in answer.body.decode()
        assert (await site.call("GET", "/health")).status == 200


TRAILERS = {
    "a key": b"authorization: Bearer %s",
    "a key by its other name": b"x-api-key: %s",
    "an encoding": b"content-encoding: gzip\r\nx: %s",
    "an expectation": b"expect: 100-continue\r\nx: %s",
}


@pytest.mark.parametrize("trailer", TRAILERS.values(), ids=TRAILERS.keys())
@pytest.mark.parametrize("is_at_once", [True, False], ids=["at once", "apart"])
async def test_trailers_are_no_headers(trailer: bytes, is_at_once: bool) -> None:
    async with running_site(api_key="admin") as site:
        created = (await site.call("POST", "/sessions", {}, x_api_key="admin")).json()
        key = created["key"].encode()
        path, framing = f"/sessions/{created['session_id']}/v1/chat/completions", b"transfer-encoding: chunked"
        end = CHUNKS + trailer % key + b"\r\n\r\n"
        for own, expected in ((b"x: 1", 401), (b"x-api-key: " + key, 200)):
            head = spell_head(path, framing, b"connection: close", own)
            answer = await exchange(site, *([head + end] if is_at_once else [head, end]))
            assert answer is not None
            assert answer.status == expected


WHOLE = b"content-length: %d" % len(BODY)
BEHIND = {
    "an empty line": (b"\r\n", True),
    "a whole request": (b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", False),
    "a letter": (b"G", False),
    "what is no request": (b"\x00\x01", False),
    "half a head": (b"POST /v1/messages HTTP/1.1\r\nhost", False),
    "a head that is too large": (b"GET / HTTP/1.1\r\nx: " + b"a" * 300_000, False),
    "half a body": (spell_head("/v1/messages", WHOLE) + BODY[:-1], False),
    "two lengths": (spell_head("/v1/messages", b"content-length: 1", b"content-length: 2"), False),
    "a bad chunk": (spell_head("/v1/messages", b"transfer-encoding: chunked") + b"zz\r\n", False),
    "a tunnel": (b"CONNECT localhost:22 HTTP/1.1\r\nhost: x\r\n\r\n", False),
}


@pytest.mark.parametrize("does_stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("behind", "stays_open"), BEHIND.values(), ids=BEHIND.keys())
async def test_what_comes_behind_a_request_does_not_spoil_its_answer(
    behind: bytes, stays_open: bool, does_stream: bool
) -> None:
    due = asyncio.Event()
    async with running_site(
        ScriptedEngine(default=ScriptedReply(wait=due)), read_timeout=SHORT_S, stream_header_delay=0
    ) as site:
        session = await site.create()
        body = orjson.dumps({"messages": [user("a")], "stream": does_stream})
        head = spell_head(f"{session}/v1/chat/completions", b"content-length: %d" % len(body))
        async with connecting(site) as (reader, writer):
            writer.write(head + body + behind)
            await site.engine.wait_for_generations(1)
            await asyncio.sleep(2 * SHORT_S)  # the time of what is behind is over
            due.set()
            first = await reader.readuntil(b"\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 200")
            if stays_open:
                writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            rest = await reader.read()
            assert (b"[DONE]" if does_stream else b'"finish_reason"') in rest
            assert rest.count(b"HTTP/1.1 200") == (b"health" in behind or stays_open)
            assert b"HTTP/1.1 4" not in rest
        assert not site.find_entry(session.rpartition("/")[2]).lost


async def test_a_request_with_another_behind_it_sees_its_client_leave() -> None:
    async with running_site(ScriptedEngine(default=ScriptedReply(wait=asyncio.Event())), reconnect_grace=0) as site:
        session, told = await site.create(), asyncio.Event()
        site.engine.on_request = lambda request: told.set() if request.path == "/abort_request" else None
        async with connecting(site) as (_, writer):
            writer.write(2 * (spell_head(f"{session}/v1/chat/completions", WHOLE) + BODY))
            await site.engine.wait_for_generations(1)
            writer.transport.abort()
        await asyncio.wait_for(told.wait(), 20)


NO_HTTP = {
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "two lengths": b"POST /v1/messages HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
    "a length and chunks": b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
    "a bad chunk": b"POST /sessions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("sent", NO_HTTP.values(), ids=NO_HTTP.keys())
async def test_what_is_no_request_is_told_so(sent: bytes) -> None:
    async with running_site(read_timeout=5) as site:
        answer = await exchange(site, sent)
        assert answer is not None
        assert answer.status == 400
        assert "error" in answer.json()


async def test_one_address_has_a_limit_of_connections() -> None:
    async with running_site(max_peer_connections=3) as site:
        async with connecting(site) as (first, writer), connecting(site), connecting(site):
            ask = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
            refused = await exchange(site, spell_head("/v1/messages", b"content-length: 2"))
            assert refused is not None
            assert (refused.status, refused.json()["type"]) == (429, "error")
            assert b"retry-after" in refused.headers
            assert await exchange(site, b"") is None, "one that says nothing is closed soon"
            writer.write(ask)
            assert b"200" in await first.readuntil(b"\r\n"), "those that were there go on"
        async with connecting(site) as (reader, writer):
            writer.write(ask)
            assert b"200" in await reader.readuntil(b"\r\n"), "there is room again"
        counted = (await site.call("GET", "/metrics")).body.decode()
        assert 'turnkeeper_limits_reached_total{limit="max_peer_connections"} 1.0' in counted


async def test_hundreds_of_connections_of_one_address_are_served() -> None:
    async with running_site() as site, contextlib.AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connecting(site)) for _ in range(300)]
        for _, writer in held:
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert all([b"200" in await reader.readuntil(b"\r\n") for reader, _ in held])


def test_a_refusal_has_the_form_of_the_path() -> None:
    named = {path: found.name if (found := find_dialect(path)) else None for path in ("/v1/messages?beta=true", "/")}
    assert named == {"/v1/messages?beta=true": "messages", "/": None}
    counted = find_dialect("/sessions/x/v1/messages/count_tokens")
    assert counted is not None
    assert counted.name == "messages"
