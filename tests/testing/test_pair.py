"""The scripted pair behaves as a prefill and a decode worker behind a router do.

1. A worker alone refuses what no router sent.
2. The reply is the decode worker's: its rows of the prompt are zero, or those of nobody's tokens; those of what was
   sampled are true.
3. A router that joins puts the prefill worker's rows in their place, on its routes alone, from the row asked for.
4. The router lists its workers with their roles, and each worker names its own.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest

from turnkeeper.testing import MoeShape, ScriptedEngine, ScriptedPair, ScriptedReply, running
from turnkeeper.testing.pair import find_meta, read_rows

PROMPT = [5, 6, 7, 8]
BODY = {
    "input_ids": PROMPT,
    "messages": [{"role": "user", "content": "hi"}],
    "logprobs": True,
    "return_meta_info": True,
    "return_routed_experts": True,
}


@asynccontextmanager
async def running_pair(pair: ScriptedPair, *joins: str) -> AsyncGenerator[str]:
    async with (
        running(pair.prefill) as one,
        running(pair.decode) as other,
        running(pair.router(one, other, joins=joins)) as url,
    ):
        yield url


async def call(method: str, url: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.request(method, url, json=body) as response:
        return response.status, orjson.loads(await response.read())


async def fetch_rows(url: str, **asked: Any) -> np.ndarray[Any, Any]:
    _, reply = await call("POST", url, {**BODY, **asked})
    return read_rows(find_meta(reply)["routed_experts"], MoeShape())


async def fetch_true_rows(**asked: Any) -> np.ndarray[Any, Any]:
    async with running(ScriptedEngine([ScriptedReply(text="x")], moe=MoeShape())) as url:
        return await fetch_rows(f"{url}/generate", **asked)


async def test_a_worker_alone_refuses() -> None:
    async with running(ScriptedPair().decode) as url:
        status, reply = await call("POST", f"{url}/generate", BODY)
        _, info = await call("GET", f"{url}/model_info")
    assert status == 400
    assert "without bootstrap room id" in reply["error"]["message"]
    assert info["disaggregation_mode"] == "decode"


@pytest.mark.parametrize("stale", [False, True])
async def test_rows_of_the_prompt_are_not_the_prompts(stale: bool) -> None:
    pair = ScriptedPair(default=ScriptedReply(text="x"), stale_rows=stale)
    async with running_pair(pair) as url:
        found = await fetch_rows(f"{url}/v1/chat/completions")
    true = await fetch_true_rows()
    assert found[:4].any() == stale
    assert not np.array_equal(found[:4], true[:4])
    assert np.array_equal(found[4:], true[4:])


@pytest.mark.parametrize("asked", [{}, {"routed_experts_start_len": 2}, {"routed_experts_start_len": 4}])
async def test_a_router_joins_rows_on_its_routes(asked: dict[str, int]) -> None:
    async with running_pair(ScriptedPair(default=ScriptedReply(text="x")), "/generate") as url:
        joined = await fetch_rows(f"{url}/generate", **asked)
        bare = await fetch_rows(f"{url}/v1/chat/completions", **asked)
    true = await fetch_true_rows(**asked)
    assert np.array_equal(joined, true)
    assert np.array_equal(bare, true) == (asked.get("routed_experts_start_len") == len(PROMPT))


async def test_the_router_lists_roles() -> None:
    async with running_pair(ScriptedPair()) as url:
        _, listed = await call("GET", f"{url}/workers")
    assert [worker["worker_type"] for worker in listed["workers"]] == ["prefill", "decode"]
