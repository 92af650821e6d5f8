"""What an agent is told of engines, through the whole server: never an address.

1. However an engine fails, an agent's answer has no address in its status line, headers and body, on every route that
   its key opens; status, code and form are those that the admin gets. A log has what was left out.
2. The admin, and anybody on a server without keys, is told everything.
3. What is passed through comes without headers of the engine's own, and its errors without addresses.
4. The records of a session have no address in what an engine said of its replies; the conversation stays as it was.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from agentkit import AGENTS
from httpkit import Reply, Site, running_site, serving
from servicekit import user
from turnkeeper.samples import decode_samples
from turnkeeper.testing import ScriptedEngine, ScriptedReply, unreachable_url

ADMIN = "admin-key"
ADDRESSES = ("127.0.0.1", "localhost", "gpu-17", "10.9.8.7", "worker.internal", "30303")
NOISE = b"upstream http://127.0.0.1:30303 (gpu-17:30303, 10.9.8.7, worker.internal) failed"
HEADERS = {
    "X-Worker-Url": "http://10.9.8.7:30303",
    "Via": "1.1 gpu-17",
    "Location": "http://10.9.8.7:30303/",
    "X-Served-By": "gpu-17",
    "Link": "<http://gpu-17>",
    "X-Request-Id": "r-1",
}


def shout(status: int, **members: Any) -> ScriptedReply:
    return ScriptedReply(
        status=status, body=orjson.dumps({"error": {"message": NOISE.decode()}, **members}), headers=HEADERS
    )


def strip(member: str) -> ScriptedReply:
    return ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].pop(member), headers=HEADERS)


FAULTS: dict[str, ScriptedReply] = {
    **{
        str(status): shout(status)
        for status in (302, 400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 521)
    },
    "a length": shout(400, message=f"longer than the maximum model context length of 10: {NOISE.decode()}"),
    "a proxy's page": ScriptedReply(status=502, body=b"<html>nginx at " + NOISE + b"</html>", headers=HEADERS),
    "an empty error": ScriptedReply(status=500, body=b"", headers=HEADERS),
    "no json": ScriptedReply(body=NOISE, headers=HEADERS),
    "a list": ScriptedReply(body=b"[]", headers=HEADERS),
    "no logprobs": strip("output_token_logprobs"),
    "no text": ScriptedReply(edit=lambda reply: reply["choices"][0]["message"].update(content=[NOISE.decode()])),
    "no count": ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].update(completion_tokens=99)),
    "an abort": ScriptedReply(
        finish_reason="abort", meta={"finish_reason": {"type": "abort", "message": NOISE.decode()}}
    ),
}


def check(reply: Reply, *others: str) -> None:
    shown = f"{dict(reply.headers)} {reply.body.decode()}"
    assert [each for each in (*ADDRESSES, *others) if each in shown] == []


async def open_key(site: Site, **body: Any) -> str:
    return (await site.call("POST", "/sessions", body, x_api_key=ADMIN)).json()["key"]


def read_error(reply: Reply) -> tuple[Any, ...]:
    error = reply.json()["error"]
    return (error["type"], error["code"]) if isinstance(error, dict) else (reply.json()["code"],)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("dialect", AGENTS)
async def test_no_fault_of_an_engine_shows_its_address(
    dialect: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine(default=FAULTS[name])
    async with running_site(engine, api_key=ADMIN, abort_attempts=1, abort_grace=0.01, on_abort="fail") as site:
        port = site.engine_url.rsplit(":", 1)[1]
        told: dict[str, tuple[Any, ...]] = {}
        for key in (await open_key(site), ADMIN):
            session = f"/sessions/{key.split('-')[1]}" if key != ADMIN else (await open_admin_session(site))
            agent = AGENTS[dialect](site, session, headers={"x_api_key": key})
            agent.say("hi")
            reply = await agent.ask(max_tokens=5)
            assert reply.status >= 400
            if key != ADMIN:
                check(reply, port)
            told[key] = (reply.status, read_error(reply), reply.headers.get("retry-after"))
        assert len(set(told.values())) == 1


async def open_admin_session(site: Site) -> str:
    return f"/sessions/{(await site.call('POST', '/sessions', x_api_key=ADMIN)).json()['session_id']}"


@pytest.mark.parametrize("dialect", AGENTS)
async def test_an_error_within_a_stream_shows_none(dialect: str) -> None:
    engine = ScriptedEngine(default=shout(500))
    async with running_site(engine, api_key=ADMIN, stream_header_delay=0.0) as site:
        key = await open_key(site)
        agent = AGENTS[dialect](site, "", headers={"x_api_key": key})
        agent.streams = True
        agent.say("hi")
        reply = await agent.ask(max_tokens=5)
        check(reply, site.engine_url.rsplit(":", 1)[1])
        assert "could not be reached, or failed" in reply.body.decode()


@asynccontextmanager
async def without_engine(**options: Any) -> AsyncGenerator[tuple[Site, str]]:
    with unreachable_url() as nowhere:
        async with serving(nowhere, **options) as (url, parts), aiohttp.ClientSession() as http:
            yield Site(url=url, engine_url=nowhere, engine=ScriptedEngine(), parts=parts, http=http), nowhere


async def test_an_engine_that_is_not_there_is_named_to_the_admin_and_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with without_engine(api_key=ADMIN) as (site, nowhere):
        key = await open_key(site, scopes=["read", "collect"])
        place, port = f"/sessions/{key.split('-')[1]}", nowhere.rsplit(":", 1)[1]
        body = {"messages": [user("a")]}
        taken = await site.call("POST", "/v1/chat/completions", body, x_api_key=key)
        passed = await site.call("POST", f"{place}/tokenize", body, x_api_key=key)
        for reply in (taken, passed):
            assert reply.status == 502
            check(reply, port)
        for method, path in [("GET", place), ("POST", f"{place}/samples"), ("GET", "/v1/models"), ("GET", "/health")]:
            check(await site.call(method, path, x_api_key=key), port)
        assert nowhere in caplog.text
        assert key not in caplog.text
        admins = await site.call("POST", f"{place}/v1/chat/completions", body, x_api_key=ADMIN)
        assert nowhere in admins.json()["error"]["message"]


async def test_a_server_without_keys_tells_everybody() -> None:
    async with without_engine() as (site, nowhere):
        reply = await site.chat(await site.create(), [user("a")])
        assert nowhere in reply.json()["error"]["message"]


@pytest.mark.parametrize("status", [200, 302, 400, 404, 500, 503])
async def test_what_is_passed_through_shows_none(status: int) -> None:
    async with running_site(api_key=ADMIN) as site:
        key = await open_key(site)
        site.engine.control_answers["/tokenize"] = (
            status,
            orjson.dumps({"detail": NOISE.decode()} if status != 200 else {"tokens": [1]}),
        )
        path = f"/sessions/{key.split('-')[1]}/tokenize"
        told = await site.call("POST", path, {"prompt": "a"}, x_api_key=key)
        shown = await site.call("POST", path, {"prompt": "a"}, x_api_key=ADMIN)
        assert told.status == shown.status == status
        if status == 200:
            assert told.body == shown.body == b'{"tokens":[1]}'
        else:
            check(told, site.engine_url.rsplit(":", 1)[1])
            assert told.json()["code"] == "engine"
            assert "gpu-17" in shown.body.decode()


UNSAYABLE = {
    "a status beyond all": (b"HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n", 502),
    "the last status": (b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}", 502),
    "no status": (b"HTTP/1.1 000 Odd\r\ncontent-length: 0\r\n\r\n", 502),
    "another protocol": (b"HTTP/1.1 101 Odd\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", 502),
    "nothing new": (b"HTTP/1.1 304 Odd\r\netag: a\r\ncontent-length: 9\r\n\r\n", 304),
    "nothing at all": (b"HTTP/1.1 204 Odd\r\ncontent-length: 9\r\n\r\n", 204),
    "a header in UTF-8": ("HTTP/1.1 200 OK\r\netag: \u2192\r\ncontent-length: 2\r\n\r\n{}".encode(), 200),
    "a header of odd bytes": (b"HTTP/1.1 200 OK\r\ncontent-type: \xff\xfe\r\ncontent-length: 2\r\n\r\n{}", 200),
    "a control character": (b"HTTP/1.1 200 OK\r\netag: a\x01\r\ncontent-length: 2\r\n\r\n{}", 200),
    "a wait of other digits": ("HTTP/1.1 429 T\r\nretry-after: \u0663\r\ncontent-length: 2\r\n\r\n{}".encode(), 429),
}


@pytest.mark.parametrize(("answer", "status"), UNSAYABLE.values(), ids=UNSAYABLE.keys())
async def test_a_passed_reply_that_is_hard_to_say_leaves_the_connection_sound(answer: bytes, status: int) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0]
        writer.write(answer if b"/version" in line else b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with serving(f"http://127.0.0.1:{port}", api_key=ADMIN, engine="sglang") as (url, parts):
            one = aiohttp.TCPConnector(limit=1)  # the next request meets what a reply has left behind
            async with aiohttp.ClientSession(connector=one) as http:
                site = Site(url=url, engine_url="", engine=ScriptedEngine(), parts=parts, http=http)
                key = await open_key(site)
                for who in (key, ADMIN):
                    reply = await site.call("GET", f"/sessions/{key.split('-')[1]}/version", x_api_key=who)
                    assert reply.status == status
                    assert (await site.call("GET", "/v1/models", x_api_key=who)).status == 200


async def test_records_show_none_and_keep_the_conversation() -> None:
    said = "Ask http://10.9.8.7:30303 for it"
    meta = {"worker": "http://10.9.8.7:30303", "peers": ["gpu-17:30303"], "e2e_latency": 0.5}
    async with running_site(ScriptedEngine(default=ScriptedReply(text=said, meta=meta)), api_key=ADMIN) as site:
        key = await open_key(site, scopes=["read", "collect"])
        place = f"/sessions/{key.split('-')[1]}"
        reply = await site.call("POST", "/v1/chat/completions", {"messages": [user(said)]}, x_api_key=key)
        assert reply.json()["choices"][0]["message"]["content"] == said
        for who, worker in ((key, "the engine"), (ADMIN, "http://10.9.8.7:30303")):
            (record,) = (await site.call("GET", place, x_api_key=who)).json()["records"]
            shown = record["response"]["choices"][0]
            assert (shown["message"]["content"], record["request"]["messages"][0]["content"]) == (said, said)
            assert (shown["meta_info"]["worker"], shown["meta_info"]["e2e_latency"]) == (worker, 0.5)
        collected = await site.call("POST", f"{place}/samples", x_api_key=key)
        (sample,) = decode_samples(collected.body).samples
        assert "gpu-17" not in str(sample.metadata)
        assert site.engine_url.rsplit(":", 1)[1] not in str(sample.metadata)


def fail(*_: object) -> list[Any]:
    raise ConnectionError("no answer from gpu-17:30303")


async def test_a_hook_that_fails_tells_its_story_to_the_admin() -> None:
    hook = f"{__name__}.fail"
    async with running_site(api_key=ADMIN, use_session_server="v2", session_sample_postprocessor_path=hook) as site:
        key = await open_key(site, scopes=["collect"])
        await site.call("POST", "/v1/chat/completions", {"messages": [user("a")]}, x_api_key=key)
        path = f"/sessions/{key.split('-')[1]}/samples"
        told, shown = [await site.call("POST", path, x_api_key=who) for who in (key, ADMIN)]
        assert (told.status, told.json()["code"]) == (shown.status, shown.json()["code"]) == (422, "hook")
        check(told)
        assert "gpu-17" in shown.json()["error"]
