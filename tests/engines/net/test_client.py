"""The one HTTP client that talks to engines.

1. Every failure of the connection is an `EngineError` that names the URL; whether anything was accepted is a fact.
2. No redirect is followed, no cookie kept, no client header beyond the trace sent on a turn.
3. Hop-by-hop headers and those that our own server writes are never copied.
4. The pool's size is checked against the limit of open files.
5. Relays carry the routing key and none of the client's credentials.
"""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from engines.builders import make_request
from turnkeeper.engines import EngineClient, EngineState, RelayRequest, SglangEngine
from turnkeeper.engines.net.client import (
    choose_pool_size,
    raise_file_limit,
    select_reply_headers,
    select_request_headers,
)
from turnkeeper.errors import ConfigError, EngineError, EngineProtocolError, EngineTimeoutError
from turnkeeper.testing import Phase, ScriptedEngine, ScriptedReply, running, unreachable_url


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient(timeout_s=5.0, api_key="secret")
    yield client
    await client.close()


async def test_a_refused_connection_says_that_nothing_was_accepted(client: EngineClient) -> None:
    with unreachable_url() as url, pytest.raises(EngineError, match=url) as caught:
        await SglangEngine(url, client).generate(make_request())
    assert caught.value.facts["accepted"] is False
    assert caught.value.http_status == 502


@pytest.mark.parametrize("phase", [Phase.HEADERS, Phase.BODY])
async def test_a_cut_connection_is_an_engine_error_and_is_not_sent_again(client: EngineClient, phase: Phase) -> None:
    engine = ScriptedEngine([ScriptedReply(fault=phase)])
    async with running(engine) as url:
        with pytest.raises(EngineError, match=url) as caught:
            await SglangEngine(url, client).generate(make_request())
        assert "accepted" not in caught.value.facts
        assert len(engine.generations) == 1
        await SglangEngine(url, client).generate(make_request())


async def test_a_reply_cut_short_as_json_is_a_protocol_error(client: EngineClient) -> None:
    async with running(ScriptedEngine([ScriptedReply(fault=Phase.TRUNCATED)])) as url:
        with pytest.raises(EngineProtocolError, match=url):
            await SglangEngine(url, client).generate(make_request())


async def test_no_answer_in_time_is_a_timeout(client: EngineClient) -> None:
    client.timeout_s = 0.01
    engine = ScriptedEngine([ScriptedReply(wait=asyncio.Event())])
    async with running(engine) as url:
        with pytest.raises(EngineTimeoutError, match=r"0\.01 s") as caught:
            await SglangEngine(url, client).generate(make_request())
    assert caught.value.http_status == 504


async def test_a_redirect_is_not_followed(client: EngineClient) -> None:
    engine = ScriptedEngine([ScriptedReply(status=307, headers={"location": "/generate"})])
    async with running(engine) as url:
        with pytest.raises(EngineError, match="307"):
            await SglangEngine(url, client).generate(make_request())
    assert len(engine.requests) == 1


async def test_a_turn_carries_its_routing_key_our_key_and_the_trace(client: EngineClient) -> None:
    engine = ScriptedEngine(default=ScriptedReply(headers={"set-cookie": "a=b"}))
    async with running(engine) as url:
        for _ in range(2):
            trace = {"traceparent": "00-1", "x-api-key": "leak", "cookie": "leak"}
            await SglangEngine(url, client).generate(make_request(trace=trace))
    sent = dict(engine.generations[-1].headers)
    assert (sent["x-smg-routing-key"], sent["traceparent"], sent["authorization"]) == (
        "5e" * 16,
        "00-1",
        "Bearer secret",
    )
    assert not {"cookie", "x-api-key"} & set(sent)
    assert sent["accept-encoding"] == "identity"


async def test_a_relay_keeps_the_clients_headers_but_not_its_credentials(client: EngineClient) -> None:
    engine = ScriptedEngine()
    async with running(engine) as url:
        headers = (("X-Own", "1"), ("Authorization", "Bearer client"), ("Connection", "close"), ("Host", "x"))
        reply = await SglangEngine(url, client).relay(
            RelayRequest(method="GET", path="/v1/models", query="a=1", headers=headers, session_id="s1")
        )
    sent = dict(engine.requests[0].headers)
    assert (reply.status, engine.requests[0].query) == (200, "a=1")
    assert (sent["x-own"], sent["x-smg-routing-key"], sent["authorization"]) == ("1", "s1", "Bearer secret")
    assert not {"server", "date", "content-length"} & {name.lower() for name, _ in reply.headers}


@pytest.mark.parametrize(
    "name", ["Server", "DATE", "content-length", "Content-Encoding", "Transfer-Encoding", "Set-Cookie"]
)
def test_what_our_own_server_writes_is_never_copied(name: str) -> None:
    assert select_reply_headers([(name, "x"), ("X-Kept", "y")]) == (("X-Kept", "y"),)


RETURNED = {
    "Latin-1": (b"caf\xe9", b"caf\xe9"),
    "UTF-8": ("\u2192 \u0663".encode(), "\u2192 \u0663".encode()),
    "neither": (b"\xff\xfe\xed\xa0\x80", b"\xff\xfe\xed\xa0\x80"),
    "a tab": (b"a\tb", b"a\tb"),
    "a control character": (b"a\x01b", None),
    "a bell": (b"\x07", None),
    "a delete": (b"a\x7f", None),
    "a NUL": (b"a\x00", None),
    "an end of line": (b"a\r\nx-evil: 1", None),
}


@pytest.mark.parametrize(("sent", "returned"), RETURNED.values(), ids=RETURNED.keys())
def test_a_header_goes_back_byte_for_byte_or_not_at_all(sent: bytes, returned: bytes | None) -> None:
    read = sent.decode("utf-8", "surrogateescape")  # as the client library reads it
    found = select_reply_headers([("etag", read)])
    assert [value.encode("latin-1") for _, value in found] == ([] if returned is None else [returned])


@pytest.mark.parametrize(
    "name", ["Host", "CONNECTION", "Cookie", "X-Api-Key", "authorization", "Accept-Encoding", "TE"]
)
def test_what_belongs_to_one_hop_is_never_sent_on(name: str) -> None:
    assert select_request_headers([(name, "x"), ("X-Kept", "y")]) == [("X-Kept", "y")]


def test_the_pool_holds_every_turn_that_the_file_limit_carries() -> None:
    assert choose_pool_size(3000, 6064) == 3000
    with pytest.raises(ConfigError, match=r"6064 open files, the limit is 1024.*ulimit -n 6064"):
        choose_pool_size(3000, 1024)


def test_the_file_limit_can_only_rise() -> None:
    assert raise_file_limit() >= 256
    assert raise_file_limit() == raise_file_limit()


async def test_a_large_reply_arrives_whole_and_a_large_one_cut_short_is_an_error(client: EngineClient) -> None:
    whole = bytes(range(256)) * 8192
    cut = ScriptedReply(body=whole, fault=Phase.BODY)
    async with running(ScriptedEngine([ScriptedReply(body=whole), cut])) as url:
        reply = await client.post_json(f"{url}/generate", b'{"input_ids": [1]}')
        assert bytes(reply.body) == whole
        with pytest.raises(EngineError, match="broke off"):
            await client.post_json(f"{url}/generate", b'{"input_ids": [1]}')


async def test_an_abort_goes_to_the_engine_and_never_raises(client: EngineClient) -> None:
    engine = ScriptedEngine()
    async with running(engine) as url:
        await SglangEngine(url, client).abort("r-9")
    assert engine.requests[0].json == {"rid": "r-9", "abort_all": False}
    with unreachable_url() as url:
        await SglangEngine(url, client).abort("r-9")


async def test_a_probe_tells_serving_paused_and_unreachable(client: EngineClient) -> None:
    engine = ScriptedEngine(weight_version="4")
    async with running(engine) as url:
        probed = SglangEngine(url, client)
        assert [(r.state, r.weight_version) for r in await probed.fetch_status()] == [(EngineState.SERVING, "4")]
        engine.pause("retract")
        assert [r.state for r in await probed.fetch_status()] == [EngineState.PAUSED]
    with unreachable_url() as url:
        [status] = await SglangEngine(url, client).fetch_status()
    assert status.state is EngineState.UNREACHABLE
    assert url in status.error
