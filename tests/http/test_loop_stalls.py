"""Large bodies, and how long everybody else waits for them.

1. A body for a session that is not there is refused unread, however it is built.
2. The largest bodies that an agent may send, however they are built, hold the event loop up for a moment at most, and
   come to a reply or to an error in the caller's form.
"""

import asyncio
import contextlib
import http.client
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from httpkit import Site, running_site
from servicekit import user

BOUND_S = 1.5
"""Generous: on an idle machine the longest is a fifth of it, and tests run on busy ones."""

LIMIT_BYTES = 16 << 20
HEAD = b'{"messages":[{"role":"user","content":"a"}],'
NESTED = b'"x":' + b"[" * 1_200_000 + b"]" * 1_200_000 + b"}"


def _say(text: bytes) -> bytes:
    return b'{"messages":[{"role":"user","content":"' + text + b'"}]}'


def _call(arguments: str) -> bytes:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    talk = [user("a"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    return json.dumps({"messages": [*talk, {"role": "tool", "tool_call_id": "c", "content": "b"}]}).encode()


def _fill(piece: bytes, head: bytes, end: bytes) -> bytes:
    return head + piece * ((LIMIT_BYTES - len(head) - len(end)) // len(piece)) + end


BODIES: dict[str, tuple[Callable[[], bytes], set[int]]] = {
    "2.4 MB of nested lists": (lambda: HEAD + NESTED, {400}),
    "nested lists without an end": (lambda: HEAD + b'"x":' + b"[" * 2_400_000, {400}),
    "nested objects": (lambda: HEAD + b'"x":' + b'{"a":' * 400_000 + b"1" + b"}" * 400_001, {400}),
    "the largest text": (lambda: _fill(b"x ", _say(b"")[:-4], b'"}]}'), {400}),
    "the largest text of escapes": (lambda: _fill(b"\\n", _say(b"")[:-4], b'"}]}'), {400}),
    "the most empty lists": (lambda: _fill(b"[],", HEAD + b'"x":[', b"1]}"), {400}),
    "lists below the limit of values": (lambda: HEAD + b'"x":[' + b"[]," * 225_000 + b"1]}", {200}),
    "many small messages": (
        lambda: _fill(b'{"role":"user","content":"a"},', b'{"messages":[', HEAD[13:42] + b"]}"),
        {400},
    ),
    "many small messages below the limit of values": (
        lambda: b'{"messages":[' + b'{"role":"user","content":"a"},' * 150_000 + HEAD[13:42] + b"]}",
        {400},
    ),
    "duplicate keys": (lambda: HEAD + b'"x":1,' * 100_000 + b'"y":1}', {200}),
    "many unknown fields": (lambda: HEAD + b",".join(b'"x%d":1' % n for n in range(200_000)) + b"}", {200}),
    "huge numbers": (lambda: HEAD + b'"x":[' + b"123456789012345678901234567890," * 90_000 + b"1]}", {200}),
    "a number of 100,000 digits": (lambda: HEAD + b'"x":' + b"9" * 300_000 + b"}", {400}),
    "a lone surrogate in a large text": (lambda: _say(b"\\ud83d" + b"x " * 3_000_000), {400}),
    "nested tool arguments": (lambda: _call("[" * 500_000 + "]" * 500_000), {200, 400}),
    "JSON in JSON in JSON": (lambda: _call(json.dumps({"a": json.dumps({"b": "[" * 400_000})})), {200, 400}),
    "no JSON": (lambda: b"\x00" * LIMIT_BYTES, {400}),
    "quotes alone": (lambda: b'"' * LIMIT_BYTES, {400}),
    "backslashes alone": (lambda: b"\\" * LIMIT_BYTES, {400}),
    "white space": (lambda: b" " * LIMIT_BYTES, {400}),
    "one byte too many": (lambda: b"x" * (LIMIT_BYTES + 1), {413}),
}


def post(url: str, path: str, body: bytes) -> tuple[int, Any]:
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
        connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


async def measure_stall(site: Site, path: str, body: bytes) -> tuple[int, Any, float]:
    """The answer, and the longest time for which the event loop did nothing else."""
    longest = 0.0

    async def look() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before)

    looking = asyncio.create_task(look())
    status, told = await asyncio.to_thread(post, site.url, path, body)
    looking.cancel()
    return status, told, longest


@pytest.mark.parametrize(("build", "statuses"), BODIES.values(), ids=BODIES.keys())
async def test_a_large_body_holds_nobody_up(
    build: Callable[[], bytes], statuses: set[int], record_property: Any
) -> None:
    body = build()
    async with running_site(max_seq_len=2000, max_turn_body_bytes=LIMIT_BYTES) as site:
        session = await site.create()
        for path in ("v1/messages", "v1/messages/count_tokens"):
            status, told, longest = await measure_stall(site, f"{session}/{path}", body)
            record_property(path, longest)
            assert status in statuses, told
            assert status == 200 or told["type"] == "error"
            assert longest < BOUND_S


UNREAD = {
    "nested lists": HEAD + NESTED,
    "a lone surrogate": _say(b"\\ud83d" * 100_000),
    "no JSON": b"\x00" * 4_000_000,
}


@pytest.mark.parametrize("body", UNREAD.values(), ids=UNREAD.keys())
async def test_a_body_for_no_session_is_not_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_: bytes) -> Any:
        raise AssertionError("the body was read")

    monkeypatch.setattr("turnkeeper.dialects.jsonbody.orjson.loads", read)
    async with running_site() as site:
        for path in ("v1/messages", "v1/responses", "v1/chat/completions", "samples", "v1/messages/count_tokens"):
            status, _, longest = await measure_stall(site, f"/sessions/{'0' * 32}/{path}", body)
            assert status == 404
            assert longest < BOUND_S
