"""The id of a request, through the whole server.

1. Every response of every route carries exactly one ``X-Request-Id``: also errors, streams, refusals of the router and
   of a connection that never became a request.
2. A client's own id is kept where it is short and plain; any other is replaced by 32 hex digits, as is a missing one.
3. An engine gets the same id with the turn's trace headers and with what is passed through; an id that the engine
   answers with stays behind.
"""

import asyncio
import re

import pytest

from httpkit import Site, running_site
from servicekit import user
from turnkeeper.http.headers import is_request_id
from turnkeeper.testing import ScriptedEngine, ScriptedReply

DRAWN = re.compile(r"[0-9a-f]{32}")

SENT = {
    "a uuid": ("018f6f5e-7a53-7c1e-9c4b-0f2f4f7f1a11", True),
    "of a load balancer": ("Root=1-67891233-abcdef012345678912345678", True),
    "base64": ("q+/x==", True),
    "128 characters": ("a" * 128, True),
    "129 characters": ("a" * 129, False),
    "empty": ("", False),
    "a space": ("a b", False),
    "a quote": ('a"b', False),
    "a new line": ("a\nb", False),
    "not ASCII": ("\xe4", False),
    "two in one": ("a,b", False),
}


@pytest.mark.parametrize(("sent", "is_kept"), SENT.values(), ids=SENT.keys())
def test_a_short_and_plain_id_is_kept(sent: str, is_kept: bool) -> None:
    assert is_request_id(sent) is is_kept


CHAT = "/v1/chat/completions"
ROUTES: list[tuple[str, str, int]] = [
    ("POST", "{session}" + CHAT, 200),
    ("POST", "{session}" + CHAT + "?stream", 200),
    ("POST", "{session}" + CHAT + "?bad", 400),
    ("POST", "/sessions/" + "0" * 32 + CHAT, 404),
    ("POST", CHAT, 401),
    ("GET", "{session}", 200),
    ("HEAD", "{session}", 200),
    ("GET", "{session}/model_info", 200),
    ("POST", "{session}/generate", 400),
    ("POST", "{session}/samples", 200),
    ("GET", "/health", 200),
    ("GET", "/metrics", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/nowhere", 404),
    ("PATCH", "/sessions", 405),
    ("DELETE", "{session}", 204),
]
BODIES = {"?stream": {"messages": [user("a")], "stream": True}, "?bad": {"messages": 1}}


async def ask(site: Site, session: str, method: str, path: str, sent: str | None) -> tuple[int, list[str]]:
    """Call a route; its status and every request id of its response."""
    plain, mark, kind = path.partition("?")
    body = BODIES.get(mark + kind, {"messages": [user("a")]}) if plain.endswith(CHAT) else None
    headers = {} if sent is None else {"x_request_id": sent}
    reply = await site.call(method, plain.format(session=session), body, **headers)
    return reply.status, reply.headers.getall("x-request-id", [])


async def test_every_response_carries_the_id_of_its_request() -> None:
    odd = ScriptedReply(headers={"X-Request-Id": "the engine's"})
    async with running_site(ScriptedEngine(default=odd)) as site:
        session = await site.create()
        for method, path, status in ROUTES:
            assert await ask(site, session, method, path, "mine-1") == (status, ["mine-1"]), path


async def test_a_missing_or_odd_id_is_replaced_by_one_that_is_drawn() -> None:
    async with running_site() as site:
        session = await site.create()
        drawn: list[str] = []
        for method, path, status in ROUTES:
            for sent in (None, "a b"):
                found, ids = await ask(site, session, method, path, sent)
                assert found in (status, 404), path  # the session is gone when it is deleted twice
                assert len(ids) == 1, path
                drawn += ids
        assert all(map(DRAWN.fullmatch, drawn))
        assert len({*drawn}) == len(drawn)


REFUSED = {
    "no request": (b"GET\r\n\r\n", None),
    "a tunnel": (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", None),
    "a head too long": (b"GET / HTTP/1.1\r\nx-request-id: mine-2\r\na: " + b"a" * (70 << 10) + b"\r\n\r\n", "mine-2"),
    "an odd one": (b"GET / HTTP/1.1\r\nx-request-id: a b\r\na: " + b"a" * (70 << 10) + b"\r\n\r\n", None),
}


@pytest.mark.parametrize(("data", "kept"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_refusal_of_a_connection_carries_one(data: bytes, kept: str | None) -> None:
    async with running_site() as site:
        host, _, port = site.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        (found,) = re.findall(r"^x-request-id: (.*)\r$", head, re.MULTILINE)
        assert found == kept if kept else DRAWN.fullmatch(found)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("sent", ["mine-3", "a b", None])
async def test_the_engine_gets_the_same_id(sent: str | None) -> None:
    async with running_site() as site:
        session = await site.create()
        for path in ("{session}" + CHAT, "{session}/model_info"):
            method = "POST" if path.endswith(CHAT) else "GET"
            _, (answered,) = await ask(site, session, method, path, sent)
            assert site.engine.requests[-1].header("x-request-id") == answered
            assert answered == sent or sent != "mine-3"
