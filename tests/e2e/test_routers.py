"""Real routers in front of a scripted engine.

Runs where the routers are installed: ``SGLANG_ROUTER`` and ``SMG`` name their executables (PyPI ``sglang-router`` and
``smg``, each in an environment of its own), else they are looked for on the path.

1. smg keeps what a turn needs; sglang-router does not, and the probe says so and that the router is at fault.
2. Behind smg a turn runs with its rows, an abort reaches the worker, and the workers' state is the router's.
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

from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines.engine import EngineState, GenerateRequest
from turnkeeper.engines.http import EngineClient
from turnkeeper.engines.probe import Question, check_route
from turnkeeper.engines.sglang import SglangEngine
from turnkeeper.errors import EngineError
from turnkeeper.routing import RoutingShape, RowsRequest, take_patch
from turnkeeper.testing.engine import ScriptedEngine
from turnkeeper.testing.script import MoeShape, scripted_rows
from turnkeeper.testing.serve import running

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
async def router_in_front_of(command: str, worker: str, client: EngineClient) -> AsyncGenerator[str]:
    port, metrics_port = find_free_port(), find_free_port()
    arguments = [
        "launch",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker-urls",
        worker,
        "--policy",
        "round_robin",
    ]
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
            while not await is_ready(url, client):  # noqa: ASYNC110 - a foreign process has no event to wait for
                await asyncio.sleep(0.2)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def is_ready(url: str, client: EngineClient) -> bool:
    try:
        reply = await client.call("GET", f"{url}/readiness", timeout_s=2.0)
    except EngineError:
        return False
    return reply.status == 200 and b'"healthy_workers":1' in reply.body


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


async def check(client: EngineClient, url: str) -> tuple[str, ...]:
    question = Question(prompt_ids=freeze_ids([11, 12, 13, 14, 15]), shape=SHAPE)
    return (await check_route(url, client, question, connect=lambda each: SglangEngine(each, client))).problems


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
        [serving] = await wire.probe()
        engine.pause("retract")
        [paused] = await wire.probe()
    sizes = {"prompt_tokens": 4, "completion_tokens": len(found.ids)}
    patch = take_patch(found.routed_experts, request=asked, shape=SHAPE, **sizes)
    expected = scripted_rows([11, 12, 13, 14, *found.ids.tolist()], layers=2, topk=2, experts=8)[2:]
    assert np.array_equal(patch.rows.experts_RLK, expected)
    assert engine.generations[-1].header("x-smg-routing-key") == "5e" * 16
    assert (serving.url, serving.state, serving.weight_version) == (url, EngineState.SERVING, "4")
    assert paused.state is EngineState.PAUSED
    assert ("/abort_request", {"rid": "r-1", "abort_all": False}) in [(c.path, c.json) for c in engine.requests]
