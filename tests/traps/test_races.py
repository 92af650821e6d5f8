"""What happens at the same time, over real sockets, without a clock.

1. A turn whose prompt is still being rendered when its session is deleted, or all turns are ended, asks no engine, and
   is told so, also where the prompt would have been refused.
2. Retries that race a DELETE end in a 404 each and write nothing.
3. A retry of a turn that others build on is refused under linear, a sibling under tree; nothing is lost either way.
4. A reply that nobody read is repeated to a marked retry; a first turn that nobody read does not poison the session.
5. A client that goes away anywhere in a stream is either sent a recorded turn, or none is recorded.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

import orjson
import pytest

from httpkit import Site, running_site
from servicekit import assistant, get_renderer, user
from traps.untouched import check_error, check_sound, get_entry
from turnkeeper.testing import ScriptedEngine, ScriptedReply, settle

VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])
LONG_TEXT = "a long word and another one " * 4_000


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await settle(1)


def build_engine(*script: ScriptedReply) -> ScriptedEngine:
    return ScriptedEngine(script, encode=lambda text: get_renderer().tokenizer.encode(text).tolist())


@VERSIONS
async def test_a_turn_that_is_deleted_while_it_is_rendered_asks_no_engine(version: str) -> None:
    async with running_site(build_engine(), use_session_server=version) as site:
        session = await site.create()
        entry = get_entry(site, session)
        turn = asyncio.create_task(site.chat(session, [user(LONG_TEXT)]))
        await until(lambda: bool(entry.in_flight))
        site.service.delete(entry.id)  # not by a request: the prompt might be ready before it arrives
        check_error(await turn, 404, "session_closed")
        assert site.engine.generations == []


async def test_a_deletion_wins_over_what_the_prompt_would_be_refused_for() -> None:
    async with running_site(build_engine()) as site:
        session = await site.create(max_seq_len=10)
        check_error(await site.chat(session, [user(LONG_TEXT)]), 400, "context_length_exceeded")
        entry = get_entry(site, session)
        turn = asyncio.create_task(site.chat(session, [user(LONG_TEXT)]))
        await until(lambda: bool(entry.in_flight))
        site.service.delete(entry.id)
        check_error(await turn, 404, "session_closed")


async def test_a_turn_that_is_rendered_while_all_are_ended_asks_no_engine() -> None:
    async with running_site(build_engine()) as site:
        session = await site.create()
        entry = get_entry(site, session)
        turn = asyncio.create_task(site.chat(session, [user(LONG_TEXT)]))
        await until(lambda: bool(entry.in_flight))
        site.service.abort_all()
        check_error(await turn, 404, "session_closed")
        assert site.engine.generations == []
        await check_sound(site, session, turns=0)


@VERSIONS
async def test_retries_that_race_a_delete_write_nothing(version: str) -> None:
    gate = asyncio.Event()
    async with running_site(build_engine(ScriptedReply()), use_session_server=version) as site:
        session = await site.create()
        first = (await site.chat(session, [user("a")])).json()["choices"][0]["message"]
        site.engine.default = ScriptedReply(wait=gate)
        bodies = [[user("a"), first, user("b")], [user("a"), first, user("c")], [user("a")]]
        turns = [asyncio.create_task(site.chat(session, messages)) for messages in bodies]
        again = asyncio.create_task(send_retry(site, session, bodies[0]))
        await site.engine.wait_for_generations(4)
        await until(lambda: sum(flight.joined for flight in get_entry(site, session).in_flight.values()) == 1)
        deleting = [asyncio.create_task(site.call("DELETE", session)) for _ in range(3)]
        assert sorted([(await each).status for each in deleting]) == [204, 404, 404]
        gate.set()
        for turn in (*turns, again):
            check_error(await turn, 404, "session_closed")
        check_error(await site.chat(session, bodies[0]), 404, "session_not_found")
        assert len(site.engine.generations) == 4
        assert (await site.call("GET", "/sessions")).json()["sessions"] == []


async def send_retry(site: Site, session: str, messages: list[dict[str, Any]], **fields: Any) -> Any:
    body = {"messages": messages, **fields}
    return await site.call("POST", f"{session}/v1/chat/completions", body, x_stainless_retry_count="1")


@pytest.mark.parametrize("is_marked", [False, True], ids=["plain", "marked"])
@VERSIONS
async def test_a_retry_of_the_first_turn_after_the_third(version: str, is_marked: bool) -> None:
    async with running_site(build_engine(), use_session_server=version) as site:
        session = await site.create()
        messages: list[dict[str, Any]] = [user("a")]
        for index in range(3):
            said = (await site.chat(session, messages)).json()["choices"][0]["message"]
            messages += [said, user(f"b{index}")]
        ask = send_retry if is_marked else Site.chat
        retried = await ask(site, session, [user("a")])
        if version == "v1":
            check_error(retried, 400, "history_diverged")
            assert "--session-max-rollback" in retried.json()["error"]["message"]
            await check_sound(site, session, turns=3)
        else:
            assert retried.status == 200
            batch = await check_sound(site, session, turns=4)
            assert batch.session_metadata["turnkeeper"]["turns"][3]["label"] != "extension"
        assert (await site.chat(session, messages)).status == 200


@VERSIONS
async def test_a_first_turn_that_nobody_read_does_not_poison_the_session(version: str) -> None:
    async with running_site(build_engine(), use_session_server=version) as site:
        session = await site.create()
        lost = await send_and_leave(site, session, [user("a")])
        await until(lambda: len(get_entry(site, session).session.forest) == 1)
        lost.close()
        again = (await site.chat(session, [user("a")])).json()["choices"][0]["message"]
        result = [user("a"), again, user("result")]
        assert (await site.chat(session, result)).status == 200
        entry = get_entry(site, session)
        batch = await check_sound(site, session, turns=len(entry.session.forest))
        assert [len(sample.metadata["turnkeeper"]["turns"]) for sample in batch.samples] == [2]


async def send_and_leave(site: Site, session: str, messages: list[dict[str, Any]], **fields: Any) -> socket.socket:
    """Send a turn on a socket that nobody reads."""
    url = urlparse(site.url)
    body = orjson.dumps({"messages": messages, **fields})
    head = f"POST {session}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.socket()
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (str(url.hostname), int(url.port or 0)))
    await loop.sock_sendall(connection, head.encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@VERSIONS
async def test_a_reply_that_nobody_read_is_repeated_to_a_marked_retry(version: str, stream: bool) -> None:
    async with running_site(build_engine(), use_session_server=version) as site:
        session = await site.create()
        lost = await send_and_leave(site, session, [user("a")], stream=stream)
        await until(lambda: len(get_entry(site, session).session.forest) == 1)
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not a farewell
        lost.close()
        again = await send_retry(site, session, [user("a")])
        assert again.json()["choices"][0]["message"]["content"] == "reply 1"
        assert len(site.engine.generations) == 1
        await check_sound(site, session, turns=1)


@pytest.mark.parametrize("events", range(4))
async def test_a_client_that_leaves_within_a_stream_finds_the_session_sound(events: int) -> None:
    gate = asyncio.Event()
    options: dict[str, Any] = {"stream_header_delay": 0, "stream_heartbeat": 0.001, "reconnect_grace": 0}
    async with running_site(build_engine(ScriptedReply(text="slow", wait=gate)), **options) as site:
        session = await site.create()
        body = {"messages": [user("a")], "stream": True}
        response = await site.http.post(f"{site.url}{session}/v1/chat/completions", json=body)
        for _ in range(events):
            await response.content.readuntil(b"\n\n")
        gate.set()
        response.close()
        entry = get_entry(site, session)
        await until(lambda: entry.is_idle)
        turns = len(entry.session.forest)
        assert turns in (0, 1)
        await check_sound(site, session, turns=turns)
        following = await site.chat(session, [user("a"), assistant("slow"), user("b")])
        assert following.status == 200
        await check_sound(site, session, turns=turns + 1)


async def test_a_client_that_leaves_while_its_prompt_is_rendered_leaves_the_session_sound() -> None:
    async with running_site(build_engine(), reconnect_grace=0) as site:
        session = await site.create()
        entry = get_entry(site, session)
        left = await send_and_leave(site, session, [user(LONG_TEXT)])
        await until(lambda: bool(entry.in_flight))
        left.close()
        await until(lambda: entry.is_idle)
        turns = len(entry.session.forest)
        assert turns <= len(site.engine.generations)
        assert (await site.chat(session, [user("a")])).status == 200
        batch = await check_sound(site, session, turns=turns + 1)
        assert len(batch.samples) == 1


async def test_collecting_showing_and_listing_while_turns_run_change_nothing() -> None:
    gate = asyncio.Event()
    async with running_site(build_engine(ScriptedReply(), ScriptedReply(wait=gate))) as site:
        session = await site.create()
        first = (await site.chat(session, [user("a")])).json()["choices"][0]["message"]
        turn = asyncio.create_task(site.chat(session, [user("a"), first, user("b")]))
        await site.engine.wait_for_generations(2)
        before = (await site.call("POST", f"{session}/samples")).body
        for _ in range(3):
            assert (await site.call("POST", f"{session}/samples")).body == before
            (listed,) = (await site.call("GET", "/sessions")).json()["sessions"]
            assert (listed["turns"], listed["in_flight"]) == (1, 1)
        gate.set()
        assert (await turn).status == 200
        await check_sound(site, session, turns=2)
