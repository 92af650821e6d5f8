"""Which adapter talks to which URL.

1. A named kind and wire choose the adapter; several URLs make a pool, one twice does not.
2. Auto asks: SGLang, vLLM, and a router that answers neither; a server that is not there is asked again.
"""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engines.builders import make_request
from turnkeeper.choices import EngineKind, EngineWire
from turnkeeper.engines import (
    Engine,
    EngineClient,
    EngineState,
    RelayRequest,
    SglangEngine,
    SglangGenerateEngine,
    VllmEngine,
)
from turnkeeper.errors import EngineError
from turnkeeper.fleet import EnginePool, connect_engines
from turnkeeper.fleet.connect import DetectedEngine, detect_kind
from turnkeeper.testing import ScriptedEngine, ScriptedReply, ScriptedVllm, running, unreachable_url


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


def connect(
    client: EngineClient, *urls: str, kind: EngineKind = EngineKind.AUTO, wire: EngineWire = EngineWire.CHAT
) -> Engine:
    def parse(*_: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": "parsed"}

    return connect_engines(urls, client, kind=kind, wire=wire, parse=parse, now=lambda: 0.0)


@pytest.mark.parametrize(
    ("kind", "wire", "expected"),
    [
        (EngineKind.SGLANG, EngineWire.CHAT, SglangEngine),
        (EngineKind.SGLANG, EngineWire.GENERATE, SglangGenerateEngine),
        (EngineKind.VLLM, EngineWire.CHAT, VllmEngine),
        (EngineKind.AUTO, EngineWire.CHAT, DetectedEngine),
    ],
)
async def test_kind_and_wire_choose_the_adapter(
    client: EngineClient, kind: EngineKind, wire: EngineWire, expected: type[Any]
) -> None:
    assert type(connect(client, "http://a/", kind=kind, wire=wire)) is expected


async def test_several_urls_make_a_pool(client: EngineClient) -> None:
    assert isinstance(connect(client, "http://a", "http://b"), EnginePool)
    assert isinstance(connect(client, "http://a", "http://a/", kind=EngineKind.SGLANG), SglangEngine)


async def test_a_server_is_asked_what_it_is(client: EngineClient) -> None:
    router = ScriptedEngine()
    router.control_answers |= {"/model_info": (404, b"{}"), "/version": (404, b"{}")}
    for engine, kind in ((ScriptedEngine(), "sglang"), (ScriptedVllm(), "vllm"), (router, "sglang")):
        async with running(engine) as url:
            assert await detect_kind(url, client) == kind


async def test_an_engine_of_unknown_kind_serves_as_what_it_is(client: EngineClient) -> None:
    async with running(ScriptedVllm([ScriptedReply(ids=[20, 2], text="hi")])) as url:
        engine = connect(client, url)
        await engine.abort("r")
        assert (await engine.generate(make_request())).message["content"] == "parsed"
        assert [status.kind for status in await engine.fetch_status()] == ["vllm"]
        assert (await engine.relay(RelayRequest(method="GET", path="/v1/models"))).status == 200
        await engine.abort("r")
        await engine.close()


async def test_a_server_that_is_not_there_is_asked_again(client: EngineClient) -> None:
    with unreachable_url() as url:
        engine = connect(client, url)
        assert [status.state for status in await engine.fetch_status()] == [EngineState.UNREACHABLE]
        with pytest.raises(EngineError, match=url):
            await engine.generate(make_request())
        await engine.close()
