"""Requests that offer an upgrade are read as those that do not.

1. The body of a turn arrives, however its bytes are cut, with a length or in chunks; the connection stays usable.
2. An offer is left out of the headers, and nothing else is.
3. CONNECT and what is no HTTP are a 400 that ends the connection.
4. uvicorn has the names that the protocol stands on, and its version is one of those that the project allows.
"""

import asyncio
import re
from importlib.metadata import version
from pathlib import Path

import orjson
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from httpkit import Site, running_site
from servicekit import user
from turnkeeper.http.protocol import UVICORN_NAMES, drop_offer

BODY = orjson.dumps({"messages": [user("a")]})
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
"""What Java's HTTP client sends."""


def spell(session: str, *, is_chunked: bool = False, offer: bytes = OFFER) -> bytes:
    length = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(BODY)
    head = b"POST %s/v1/chat/completions HTTP/1.1\r\n%shost: x\r\n%s\r\n\r\n" % (session.encode(), offer, length)
    half = len(BODY) // 2
    pieces = (BODY[:half], BODY[half:], b"")
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) if is_chunked else BODY
    return head + body


async def read_reply(reader: asyncio.StreamReader) -> bytes:
    """The status line; the whole reply is read."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(size)
    return head.split(b"\r\n")[0]


async def connect(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = site.url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize(
    "cut", [None, 10, -len(BODY), -10], ids=["whole", "in the head", "behind the head", "in the body"]
)
async def test_the_body_of_a_request_with_an_offer_is_read(is_chunked: bool, cut: int | None) -> None:
    async with running_site() as site:
        data = spell(await site.create(), is_chunked=is_chunked)
        reader, writer = await connect(site)
        for piece in (data,) if cut is None else (data[:cut], data[cut:]):
            writer.write(piece)
            await writer.drain()
            assert (await site.call("GET", "/health")).status == 200  # the server has read the piece by now
        assert await read_reply(reader) == b"http/1.1 200 ok"
        writer.write(spell(await site.create(), offer=b""))
        assert await read_reply(reader) == b"http/1.1 200 ok"
        writer.close()
        calls = [call.json["messages"] for call in site.engine.generations]
    assert calls == [[user("a")]] * 2


async def test_requests_behind_one_with_an_offer_are_answered() -> None:
    async with running_site() as site:
        first, second = await site.create(), await site.create()
        reader, writer = await connect(site)
        writer.write(spell(first) + spell(second))
        assert [await read_reply(reader) for _ in range(2)] == [b"http/1.1 200 ok"] * 2
        writer.close()


@pytest.mark.parametrize("data", [b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n", b"\x16\x03\x01\r\n\r\n"])
async def test_what_is_not_served_is_refused(data: bytes) -> None:
    async with running_site() as site:
        reader, writer = await connect(site)
        writer.write(data)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([(b"connection", b"Upgrade, HTTP2-Settings"), (b"upgrade", b"h2c"), (b"http2-settings", b"A")], []),
        ([(b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"h2c")], [(b"connection", b"keep-alive")]),
        ([(b"connection", b"close"), (b"upgrade-insecure-requests", b"1")],) * 2,
    ],
)
def test_an_offer_alone_is_left_out(given: list[tuple[bytes, bytes]], kept: list[tuple[bytes, bytes]]) -> None:
    assert drop_offer(given) == kept


@pytest.mark.parametrize("name", UVICORN_NAMES)
def test_uvicorn_has_the_name(name: str) -> None:
    set_by = (HttpToolsProtocol.__init__, HttpToolsProtocol.on_message_begin)
    assert hasattr(HttpToolsProtocol, name) or any(name in method.__code__.co_names for method in set_by)


def test_uvicorn_has_a_version_that_the_project_allows() -> None:
    pinned = re.search(
        r"uvicorn\[standard\]>=([\d.]+),<([\d.]+)", (Path(__file__).parents[2] / "pyproject.toml").read_text()
    )
    assert pinned is not None
    lowest, bound = ([int(part) for part in text.split(".")] for text in pinned.groups())
    assert lowest <= [int(part) for part in version("uvicorn").split(".")[:2]] < bound
