"""Real routers in front of a scripted engine.

Runs where the routers are installed: ``SGLANG_ROUTER`` and ``SMG`` name their executables (PyPI ``sglang-router`` and
``smg``, each in an environment of its own), else they are looked for on the path.

1. smg keeps what a turn needs; sglang-router does not, and the probe says so and that the router is at fault: in
   /health of a server that nobody told to be strict, and in the answer to its first turn.
2. Behind smg a turn runs with its rows, an abort reaches the worker, and the workers' state is the router's.
3. Both list a prefill/decode pair as one, so that turns take the generate route there. smg joins no rows of the prefill
   worker to those of the decode worker, and sglang-router passes none on: the probe says so.
"""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from channelkit import require
from probekit import build_engine, probing_site
from servicekit import user
from turnkeeper.channels.routing import RoutingShape, RowsRequest, take_patch
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import EngineClient, EngineState, GenerateRequest, SglangEngine
from turnkeeper.errors import EngineError
from turnkeeper.fleet.route_check import check_route
from turnkeeper.testing import MoeShape, ScriptedEngine, ScriptedPair, running
from turnkeeper.testing.script import scripted_rows

SHAPE = RoutingShape(layers=2, topk=2, experts=8)


def find_router(variable: str, name: str) -> str | None:
    return os.environ.get(variable) or shutil.which(name)


SGLANG_ROUTER = find_router("SGLANG_ROUTER", "sglang-router")
SMG = find_router("SMG", "smg")


def find_free_port() -> int:
    """A port that was free a moment ago: a foreign process cannot be handed a socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@asynccontextmanager
async def router_in_front_of(
    command: str, worker: str, client: EngineClient, *, prefill: str | None = None
) -> AsyncGenerator[str]:
    """Run a router before one worker, which is the decode worker of a pair where a prefill worker is given."""
    port, metrics_port = find_free_port(), find_free_port()
    workers = ["--worker-urls", worker]
    if prefill is not None:
        workers = ["--pd-disaggregation", "--prefill", prefill, "9001", "--decode", worker]
    arguments = ["launch", "--host", "127.0.0.1", "--port", str(port), *workers, "--policy", "round_robin"]
    process = await asyncio.create_subprocess_exec(
        command,
        *arguments,
        "--disable-retries",
        "--prometheus-port",
        str(metrics_port),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(60):
            while not await is_ready(url, client, workers=1 if prefill is None else 2):  # noqa: ASYNC110 - a foreign process has no event to wait for
                await asyncio.sleep(0.2)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def is_ready(url: str, client: EngineClient, *, workers: int) -> bool:
    try:
        reply = await client.call("GET", f"{url}/readiness", timeout_s=2.0)
    except EngineError:
        return False
    return reply.status == 200 and f'"healthy_workers":{workers}'.encode() in reply.body


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


async def check(client: EngineClient, url: str) -> tuple[str, ...]:
    question = require(freeze_ids([11, 12, 13, 14, 15]), shape=SHAPE)
    found = await check_route(url, client, question, connect=lambda each: SglangEngine(each, client))
    return (found.result.reason,) if found.result.reason else ()


@pytest.mark.skipif(SGLANG_ROUTER is None, reason="sglang-router is not installed (set SGLANG_ROUTER)")
async def test_sglang_router_drops_what_a_turn_needs_and_the_probe_says_so(client: EngineClient) -> None:
    engine = ScriptedEngine(moe=MoeShape())
    async with running(engine) as worker, router_in_front_of(str(SGLANG_ROUTER), worker, client) as url:
        [problem] = await check(client, url)
    assert f"the router at {url} (sglang-router) is at fault, since its worker {worker}" in problem
    assert "meta_info" in problem


@pytest.mark.skipif(SMG is None, reason="smg is not installed (set SMG)")
async def test_behind_smg_a_turn_has_its_rows_and_an_abort_its_worker(client: EngineClient) -> None:
    engine = ScriptedEngine(moe=MoeShape(), weight_version="4")
    async with running(engine) as worker, router_in_front_of(str(SMG), worker, client) as url:
        assert await check(client, url) == ()
        wire = SglangEngine(url, client)
        asked = RowsRequest(start_len=2, held_rows=2)
        request: dict[str, Any] = {"rid": "r-1", "session_id": "5e" * 16, "prompt_ids": freeze_ids([11, 12, 13, 14])}
        found = await wire.generate(GenerateRequest(**request, rows=asked))
        await wire.abort("r-1")
        [serving] = await wire.fetch_status()
        engine.pause("retract")
        [paused] = await wire.fetch_status()
    sizes = {"prompt_tokens": 4, "completion_tokens": len(found.ids)}
    patch = take_patch(found.payloads.get("routed_experts"), request=asked, shape=SHAPE, **sizes)
    expected = scripted_rows([11, 12, 13, 14, *found.ids.tolist()], layers=2, topk=2, experts=8)[2:]
    assert np.array_equal(patch.rows.experts_RLK, expected)
    assert engine.generations[-1].header("x-smg-routing-key") == "5e" * 16
    assert (serving.url, serving.state, serving.weight_version) == (url, EngineState.SERVING, "4")
    assert paused.state is EngineState.PAUSED
    assert ("/abort_request", {"rid": "r-1", "abort_all": False}) in [(c.path, c.json) for c in engine.requests]


@pytest.mark.skipif(SGLANG_ROUTER is None, reason="sglang-router is not installed (set SGLANG_ROUTER)")
async def test_a_server_behind_sglang_router_names_it(client: EngineClient) -> None:
    engine = ScriptedEngine(moe=MoeShape())
    async with (
        running(engine) as worker,
        router_in_front_of(str(SGLANG_ROUTER), worker, client) as url,
        probing_site(engine, url) as site,
    ):
        turn = await site.chat(await site.create(), [user("hi")])
        health = (await site.call("GET", "/health")).json()
    blamed = f"the router at {url} (sglang-router) is at fault, since its worker {worker}"
    assert blamed in health["problems"][0]
    assert (turn.status, turn.json()["error"]["code"]) == (502, "engine_protocol")
    assert blamed in turn.json()["error"]["message"]
    assert not engine.generations


@pytest.mark.skipif(SMG is None, reason="smg is not installed (set SMG)")
async def test_a_server_behind_smg_takes_turns(client: EngineClient) -> None:
    engine = build_engine(moe=MoeShape())
    async with (
        running(engine) as worker,
        router_in_front_of(str(SMG), worker, client) as url,
        probing_site(engine, url) as site,
    ):
        turn = await site.chat(await site.create(), [user("hi")])
        health = (await site.call("GET", "/health")).json()
    assert turn.status == 200
    assert (health["problems"], [each["route"] for each in health["engines"]]) == ([], ["sound"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(SMG, "take a router that joins the rows of the prefill worker", id="smg"),
        pytest.param(SGLANG_ROUTER, "(sglang-router) in front of prefill and decode workers", id="sglang-router"),
    ],
)
@pytest.mark.parametrize("stale_rows", [False, True])
async def test_a_pair_behind_a_router_that_joins_no_rows_is_named(
    client: EngineClient, command: str | None, said: str, stale_rows: bool
) -> None:
    if command is None:
        pytest.skip("the router is not installed (set SGLANG_ROUTER and SMG)")
    pair = ScriptedPair(stale_rows=stale_rows)
    async with (
        running(pair.prefill) as prefill,
        running(pair.decode) as decode,
        router_in_front_of(command, decode, client, prefill=prefill) as url,
        probing_site(pair.decode, url) as site,
    ):
        turn = await site.chat(await site.create(), [user("hi")])
        health = (await site.call("GET", "/health")).json()
    assert health["engines"][0]["wire"] == "generate"
    assert turn.status == 502
    assert said in turn.json()["error"]["message"]
    assert said in health["problems"][0]
