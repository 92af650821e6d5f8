"""Hang-ups, deletion and slow engines over real sockets.

1. A client that closes its connection is noticed; its retry joins the call, without one the engine is told.
2. Deleting a session ends the turn in flight with a 404 that is not to be retried, at once.
3. A stream whose engine is slow sends its headers and heartbeats; what fails afterwards is an event of the stream.
4. What fails before the headers has its real status.
"""

import asyncio
import json
from collections.abc import Callable

import aiohttp
import pytest

from httpkit import Site, running_site
from servicekit import user
from turnkeeper.dialects import parse_events
from turnkeeper.testing import ScriptedEngine, ScriptedReply, settle


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until something is true."""
    async with asyncio.timeout(10):
        while not condition():
            await settle()


def build_slow_engine() -> tuple[ScriptedEngine, asyncio.Event]:
    gate = asyncio.Event()
    return ScriptedEngine([ScriptedReply(text="slow", wait=gate)]), gate


def has_waiters(site: Site, session: str) -> bool:
    entry = site.find_entry(session.removeprefix("/sessions/"))
    return any(flight.has_waiters for flight in entry.in_flight.values())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_hangs_up_can_come_back(stream: bool) -> None:
    engine, gate = build_slow_engine()
    async with running_site(engine, reconnect_grace=60) as site:
        session = await site.create()
        lost = asyncio.create_task(site.chat(session, [user("a")], stream=stream))
        await engine.wait_for_generations(1)
        lost.cancel()
        await until(lambda: not has_waiters(site, session))
        again = asyncio.create_task(site.chat(session, [user("a")]))
        await until(lambda: has_waiters(site, session))
        gate.set()
        assert (await again).json()["choices"][0]["message"]["content"] == "slow"
        assert len(engine.generations) == 1
        assert engine.hang_ups == 0
        assert len((await site.call("GET", session)).json()["records"]) == 1


async def test_a_client_that_does_not_come_back_ends_its_engine_call() -> None:
    engine, _ = build_slow_engine()
    async with running_site(engine, reconnect_grace=0) as site:
        session = await site.create()
        lost = asyncio.create_task(site.chat(session, [user("a")]))
        await engine.wait_for_generations(1)
        lost.cancel()
        await until(lambda: any(request.path == "/abort_request" for request in engine.requests))
        told = next(request for request in engine.requests if request.path == "/abort_request")
        assert told.json == {"rid": engine.generations[0].json["rid"], "abort_all": False}
        assert (await site.call("GET", session)).json()["records"] == []
        assert (await site.chat(session, [user("b")])).status == 200


async def test_deleting_ends_the_turn_in_flight() -> None:
    engine, _ = build_slow_engine()
    async with running_site(engine) as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")]))
        await engine.wait_for_generations(1)
        assert (await site.call("DELETE", session)).status == 204
        ended = await turn
        assert (ended.status, ended.json()["error"]["code"]) == (404, "session_closed")
        assert ended.headers["x-should-retry"] == "false"
        assert (await site.call("GET", session)).status == 404
        assert (await site.call("DELETE", session)).status == 404
        assert (await site.chat(session, [user("a")])).status == 404
        assert len(engine.generations) == 1


def build_impatient_options() -> dict[str, float]:
    return {"stream_header_delay": 0, "stream_heartbeat": 0.01}


async def open_stream(site: Site, session: str) -> aiohttp.ClientResponse:
    body = {"messages": [user("a")], "stream": True}
    return await site.http.post(f"{site.url}{session}/v1/chat/completions", json=body)


async def test_a_slow_stream_sends_heartbeats_and_then_its_reply() -> None:
    engine, gate = build_slow_engine()
    async with running_site(engine, **build_impatient_options()) as site:
        session = await site.create()
        async with await open_stream(site, session) as response:
            assert response.status == 200
            start = await response.content.readuntil(b"\n\n") + await response.content.readuntil(b"\n\n")
            gate.set()
            events = list(parse_events(start + await response.read()))
        assert events[-1].data == "[DONE]"
        deltas = [json.loads(event.data)["choices"][0]["delta"] for event in events[:-1]]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert [delta["content"] for delta in deltas if delta.get("content")] == ["slow"]
        assert len({json.loads(event.data)["id"] for event in events[:-1]}) == 1


async def test_a_stream_that_fails_after_its_headers_ends_with_an_error_event() -> None:
    gate = asyncio.Event()
    broken = ScriptedReply(wait=gate, edit=lambda reply: reply.update(choices=[]))
    async with running_site(ScriptedEngine([broken]), **build_impatient_options()) as site:
        session = await site.create()
        async with await open_stream(site, session) as response:
            start = await response.content.readuntil(b"\n\n")
            gate.set()
            events = list(parse_events(start + await response.read()))
        assert json.loads(events[-1].data)["error"]["code"] == "engine_protocol"
        assert (await site.call("GET", session)).json()["records"] == []


async def test_a_stream_that_fails_before_its_headers_has_its_real_status() -> None:
    broken = ScriptedReply(edit=lambda reply: reply.update(choices=[]))
    async with running_site(ScriptedEngine([broken])) as site:
        session = await site.create()
        assert (await site.chat(session, [user("a")], stream=True)).status == 502


async def test_a_client_that_hangs_up_between_heartbeats_is_noticed() -> None:
    engine, _ = build_slow_engine()
    async with running_site(engine, reconnect_grace=0, **build_impatient_options()) as site:
        session = await site.create()
        response = await open_stream(site, session)
        await response.content.readuntil(b"\n\n")
        response.close()
        await until(lambda: any(request.path == "/abort_request" for request in engine.requests))


async def test_requests_in_flight_are_limited() -> None:
    engine, gate = build_slow_engine()
    async with running_site(engine, max_in_flight=1) as site:
        session = await site.create()
        first = asyncio.create_task(site.chat(session, [user("a")]))
        await engine.wait_for_generations(1)
        refused = await site.chat(session, [user("b")])
        assert (refused.status, refused.json()["error"]["code"]) == (429, "capacity")
        assert "retry-after" in refused.headers
        gate.set()
        assert (await first).status == 200
        assert (await site.chat(session, [user("a")])).status == 200


async def test_sessions_are_limited() -> None:
    async with running_site(max_sessions=1) as site:
        session = await site.create()
        refused = await site.call("POST", "/sessions")
        assert (refused.status, refused.json()["code"]) == (429, "capacity")
        assert "max-sessions" in refused.json()["error"]
        await site.call("DELETE", session)
        assert (await site.call("POST", "/sessions")).status == 200
