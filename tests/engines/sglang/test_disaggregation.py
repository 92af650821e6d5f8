"""Prefill/decode disaggregation: the wire that suits it, and what the probe says of it.

1. An engine that serves so is seen: at its router's list of workers, or at what it says of itself.
2. Where nobody chose a wire, turns take the generate route there, and the chat route elsewhere; a status changes it.
3. On the generate route behind a router that joins rows, rows and samples are those of one engine alone.
4. Rows that are not the prompt's, zero or stale, are found on either route, and what is at fault is named.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from channelkit import require
from engines.builders import make_request
from turnkeeper.channels.routing import RoutingShape, RowsRequest, take_patch
from turnkeeper.choices import EngineKind, EngineWire
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import Engine, EngineClient, Generation
from turnkeeper.engines.sglang.disaggregation import AutoSglangEngine
from turnkeeper.fleet import connect_engines
from turnkeeper.fleet.check_result import RouteState
from turnkeeper.fleet.route_check import RouteStatus, check_route
from turnkeeper.testing import MoeShape, ScriptedEngine, ScriptedPair, ScriptedReply, running
from turnkeeper.testing.pair import ScriptedWorker

SHAPE = RoutingShape(layers=2, topk=2, experts=8)


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


@asynccontextmanager
async def running_pair(pair: ScriptedPair, *joins: str) -> AsyncGenerator[str]:
    async with (
        running(pair.prefill) as one,
        running(pair.decode) as other,
        running(pair.router(one, other, joins=joins)) as url,
    ):
        yield url


def connect(url: str, client: EngineClient, wire: EngineWire | None = None) -> Engine:
    def parse(*_: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": "parsed"}

    return connect_engines([url], client, kind=EngineKind.SGLANG, wire=wire, parse=parse, now=lambda: 0.0)


async def check(client: EngineClient, url: str, wire: EngineWire | None = None) -> RouteStatus:
    question = require(freeze_ids(range(1, 9)), shape=SHAPE)
    return await check_route(url, client, question, connect=lambda each: connect(each, client, wire))


@pytest.mark.parametrize("role", ["prefill", "decode", "null"])
async def test_an_engine_says_itself_how_it_serves(client: EngineClient, role: str) -> None:
    async with running(ScriptedWorker(role, moe=None)) as url:
        [status] = await connect(url, client).fetch_status()
    assert status.is_disaggregated == (role != "null")


async def test_a_router_lists_how_its_workers_serve(client: EngineClient) -> None:
    pair = ScriptedPair()
    for worker in (pair.prefill, pair.decode):
        del worker.control_answers["/model_info"]  # older engines do not say it
    async with running_pair(pair) as url:
        [status] = await connect(url, client).fetch_status()
    assert status.is_disaggregated
    assert len(status.workers) == 2


async def test_turns_take_the_route_that_suits(client: EngineClient) -> None:
    pair, plain = ScriptedPair(), ScriptedEngine()
    async with running_pair(pair) as pair_url, running(plain) as plain_url:
        for url in (pair_url, plain_url):
            await connect(url, client).generate(make_request())
    assert [call.path for call in pair.decode.generations] == ["/generate"]
    assert [call.path for call in plain.generations] == ["/v1/chat/completions"]


async def test_a_look_changes_the_route(client: EngineClient) -> None:
    engine = ScriptedEngine()
    async with running(engine) as url:
        fitting = connect(url, client)
        assert isinstance(fitting, AutoSglangEngine)
        await fitting.generate(make_request())
        engine.control_answers["/model_info"] = (200, b'{"disaggregation_mode": "decode"}')
        [status] = await fitting.fetch_status()
        await fitting.generate(make_request())
    assert status.wire is EngineWire.GENERATE
    assert [call.path for call in engine.generations] == ["/v1/chat/completions", "/generate"]


async def test_a_router_without_workers_changes_nothing(client: EngineClient) -> None:
    engine = ScriptedEngine()
    engine.control_answers["/model_info"] = (200, b'{"disaggregation_mode": "decode"}')
    async with running(engine) as url:
        fitting = connect(url, client)
        await fitting.fetch_status()
        engine.control_answers |= dict.fromkeys(("/model_info", "/get_model_info", "/workers"), (404, b""))
        [status] = await fitting.fetch_status()
    assert status.wire is EngineWire.GENERATE


async def generate(url: str, client: EngineClient, start: int | None) -> tuple[Generation, Any]:
    asked = RowsRequest(start_len=start, held_rows=start or 0)
    found = await connect(url, client).generate(make_request(rows=asked))
    count = len(make_request().prompt_ids)
    patch = take_patch(
        found.payloads.get("routed_experts"),
        request=asked,
        shape=SHAPE,
        prompt_tokens=count,
        completion_tokens=len(found.ids),
    )
    return found, patch.rows.experts_RLK


@pytest.mark.parametrize("start", [None, 0, 2])
async def test_joined_rows_and_samples_are_those_of_one_engine(client: EngineClient, start: int | None) -> None:
    reply = ScriptedReply(text="hello")
    async with running_pair(ScriptedPair(default=reply), "/generate") as url:
        found, rows = await generate(url, client, start)
    async with running(ScriptedEngine(default=reply, moe=MoeShape())) as url:
        alone, true_rows = await generate(url, client, start)
    assert np.array_equal(rows, true_rows)
    assert found.ids.tolist() == alone.ids.tolist()
    assert found.logprobs.tolist() == alone.logprobs.tolist()


@pytest.mark.parametrize("stale", [False, True], ids=["zero", "stale"])
@pytest.mark.parametrize(
    ("wire", "joins", "said"),
    [
        pytest.param(EngineWire.CHAT, ["/generate"], "give --engine-wire generate", id="chat chosen"),
        pytest.param(None, [], "take a router that joins the rows", id="joined nowhere"),
    ],
)
async def test_rows_that_are_not_the_prompts_are_found(
    client: EngineClient, wire: EngineWire | None, joins: list[str], said: str, stale: bool
) -> None:
    async with running_pair(ScriptedPair(stale_rows=stale), *joins) as url:
        found = await check(client, url, wire)
    assert (found.result.state, found.result.is_fatal) == (RouteState.UNFIT, True)
    assert f"{url} serves by prefill/decode disaggregation" in found.result.reason
    assert said in found.result.reason


async def test_joined_rows_are_sound(client: EngineClient) -> None:
    pair = ScriptedPair(stale_rows=True)
    async with running_pair(pair, "/generate") as url:
        found = await check(client, url)
    assert found.result.state is RouteState.SOUND
    assert found.result.sampled_tokens == 6
    assert len(pair.decode.probes) == 3


async def test_one_half_of_a_pair_is_told_to_be_one(client: EngineClient) -> None:
    async with running(ScriptedPair().decode) as url:
        found = await check(client, url)
    assert found.result.is_fatal
    assert "--backend-url has to name the router in front of the pair" in found.result.reason


async def test_a_router_in_front_of_a_pair_that_drops_fields_is_named(client: EngineClient) -> None:
    pair = ScriptedPair()
    for worker in (pair.prefill, pair.decode):
        worker.moe = None  # as good as a router that does not pass return_routed_experts on
    async with running_pair(pair, "/generate") as url:
        found = await check(client, url)
    assert f"the router at {url} (sglang-router) in front of prefill and decode workers" in found.result.reason
    assert "routed_experts" in found.result.reason
