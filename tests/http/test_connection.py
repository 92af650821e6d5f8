"""Connections, read byte by byte.

1. Every reply has each header once, and its own framing, whatever the engine sent.
2. A connection stays open and usable between turns; the server keeps it longer than clients pause.
3. A body that is sent in chunks is read; one that never ends is refused within bounded memory.
4. While large sessions are worked on, small requests are answered.
"""

import asyncio
from collections.abc import AsyncIterator

import orjson

from httpkit import Site, running_site
from servicekit import user
from turnkeeper.server.serve import LAST_RESPONSES_S, build_uvicorn_config, open_listener
from turnkeeper.testing import ScriptedEngine, ScriptedReply


class Wire:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, site: Site) -> "Wire":
        host, _, port = site.url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def chat(self, session: str) -> list[str]:
        """Post a turn; the lines of the reply's head."""
        body = orjson.dumps({"messages": [user("a")]})
        head = f"POST {session}/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")[:-2]
        size = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        await self.reader.readexactly(size)
        return lines

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def test_a_reply_has_one_of_each_header_and_its_connection_stays_open() -> None:
    odd = {"Server": "engine", "DATE": "x", "Connection": "close", "Keep-Alive": "timeout=1"}
    async with running_site(ScriptedEngine(default=ScriptedReply(headers=odd))) as site:
        session = await site.create()
        wire = await Wire.open(site)
        for _ in range(2):
            lines = await wire.chat(session)
            assert lines[0] == "http/1.1 200 ok"
            names = [line.split(":")[0] for line in lines[1:]]
            assert len(names) == len(set(names))
            assert {"content-length", "content-type"} <= set(names)
            assert "content-encoding" not in names
        await wire.close()


def test_the_server_keeps_connections_longer_than_clients_pause() -> None:
    built = build_uvicorn_config(object())
    assert built.timeout_keep_alive == 900
    assert built.timeout_graceful_shutdown == LAST_RESPONSES_S + 1  # behind the drain, which has its own timeout


def test_a_free_port_is_taken_where_0_is_asked_for() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0


async def send_in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for index in range(0, len(body), 7):
        yield body[index : index + 7]


async def test_a_body_in_chunks_is_read() -> None:
    async with running_site() as site:
        session = await site.create()
        body = orjson.dumps({"messages": [user("a")]})
        async with site.http.post(f"{site.url}{session}/v1/chat/completions", data=send_in_pieces(body)) as reply:
            assert reply.status == 200


async def test_a_body_that_never_ends_is_refused() -> None:
    async with running_site(max_body_bytes=1 << 20) as site:
        session = await site.create()
        wire = await Wire.open(site)
        wire.writer.write(f"POST {session}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n".encode())
        wire.writer.write(b"transfer-encoding: chunked\r\n\r\n")
        for _ in range(20):
            wire.writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        assert (await wire.reader.readline()).split()[1] == b"413"
        wire.writer.transport.abort()
        await wire.close()
        assert (await site.call("GET", "/health")).status == 200


async def test_small_requests_are_answered_while_a_large_prompt_is_rendered() -> None:
    async with running_site(ScriptedEngine(context_length=10**9)) as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("word " * 40_000)]))
        answered = 0
        while not turn.done():
            assert (await site.call("GET", "/health")).status == 200
            answered += 1
        assert (await turn).status == 200
        assert answered > 1
