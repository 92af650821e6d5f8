"""Does a route keep what a turn needs?

1. A sound route has no problem, with rows and without.
2. A missing flag, a whole payload, prompt rows that no forward produced, a build without the indexer: each is named.
3. A router that drops fields is told from an engine at fault by asking its workers directly.
4. An engine that is not there or paused is a state, not a problem; one that gives no answer is said to, and its call is
   ended. Neither makes a route unfit, as an engine's own refusal of the probe stops no turn.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import numpy as np
import orjson
import pybase64
import pytest

from channelkit import require
from turnkeeper.channels.routing import RoutingShape
from turnkeeper.choices import OnBadRows
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import EngineClient, EngineState, SglangEngine
from turnkeeper.engines.net.client import HttpReply
from turnkeeper.errors import EngineError, EngineProtocolError, EngineRefusedError, EngineTimeoutError, TurnkeeperError
from turnkeeper.fleet.check_result import RouteCheckResult, RouteState, classify_error, describe_fault
from turnkeeper.fleet.route_check import check_route, read_router_name
from turnkeeper.testing import MoeShape, ScriptedEngine, running, unreachable_url

SHAPE = RoutingShape(layers=2, topk=2, experts=8)
IDS = freeze_ids([11, 12, 13, 14, 15])


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


async def check(client: EngineClient, url: str, *, timeout_s: float = 5.0, **asked: Any) -> tuple[str, ...]:
    requirements = require(IDS, **asked)
    found = await check_route(
        url, client, requirements, connect=lambda each: SglangEngine(each, client), timeout_s=timeout_s
    )
    return (found.result.reason,) if found.result.reason else ()


def answering(**reply: Any) -> ScriptedEngine:
    """An engine whose answer to the probe is this one."""
    engine = ScriptedEngine(moe=MoeShape())
    engine.probe_reply = replace(engine.probe_reply, **reply)
    return engine


NO_MASKS = answering(meta={"output_token_sampling_mask": None})


class DroppingRouter:
    """A router that passes on only the fields it knows, and answers control routes with 404."""

    def __init__(self, worker: str, *drops: str) -> None:
        self.worker = worker
        self.drops = drops
        self.others: tuple[str, ...] = ()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        status, answer = await self._answer(scope["path"], body)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/workers":
            return 200, orjson.dumps({"workers": [{"url": url} for url in (self.worker, *self.others)]})
        if path != "/v1/chat/completions":
            return 404, b""
        kept = {name: value for name, value in orjson.loads(body).items() if name not in self.drops}
        async with aiohttp.ClientSession() as session, session.post(self.worker + path, json=kept) as response:
            return response.status, await response.read()


@pytest.mark.parametrize("addition", [True, False])
@pytest.mark.parametrize("shape", [SHAPE, None])
async def test_a_sound_route_has_no_problem(client: EngineClient, shape: RoutingShape | None, addition: bool) -> None:
    engine = ScriptedEngine(moe=MoeShape())
    async with running(engine) as url:
        assert await check(client, url, shape=shape, use_addition_r3=addition, wants_indexer=True) == ()
    sent = engine.probes[0].json
    assert ("routed_experts_start_len" in sent) == (shape is not None and addition)
    assert len(engine.probes) == 1


async def test_masks_are_asked_for_with_a_sampler_that_truncates(client: EngineClient) -> None:
    engine = ScriptedEngine(moe=MoeShape())
    async with running(engine) as url:
        assert await check(client, url, wants_masks=True, shape=SHAPE) == ()
        sent = engine.probes[0].json
        assert (sent["return_sampling_mask"], sent["top_p"], sent["top_k"], sent["temperature"]) == (True, 0.9, 20, 1.0)
        async with running(DroppingRouter(url, "return_sampling_mask")) as router_url:
            [problem] = await check(client, router_url, wants_masks=True)
    assert "the router at" in problem
    assert "sampling masks were asked for" in problem


def _send_whole(value: dict[str, Any]) -> None:
    meta = value["choices"][0]["meta_info"]
    rows = np.frombuffer(pybase64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, 2, 2)
    meta["routed_experts"] = pybase64.b64encode(np.concatenate([rows[:1], rows]).tobytes()).decode()


def _spoil_prompt_rows(value: dict[str, Any]) -> None:
    meta = value["choices"][0]["meta_info"]
    rows = np.frombuffer(pybase64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, 2, 2).copy()
    rows[:2] = 0
    meta["routed_experts"] = pybase64.b64encode(rows.tobytes()).decode()


@pytest.mark.parametrize(
    ("engine", "asked", "said"),
    [
        pytest.param(ScriptedEngine(), {"shape": SHAPE}, "--enable-return-routed-experts", id="flag missing"),
        pytest.param(
            answering(edit=_send_whole),
            {"shape": SHAPE},
            "ignored routed_experts_start_len",
            id="start dropped",
        ),
        pytest.param(
            answering(edit=_spoil_prompt_rows),
            {"shape": SHAPE},
            "prefill/decode",
            id="disaggregated",
        ),
        pytest.param(
            ScriptedEngine(moe=MoeShape(layers=3)), {"shape": SHAPE}, "wrong_length", id="another model's layers"
        ),
        pytest.param(ScriptedEngine(), {"wants_indexer": True}, "indexer_topk", id="no indexer"),
        pytest.param(
            answering(meta={"output_token_sampling_mask": None}), {"wants_masks": True}, "has none", id="no masks"
        ),
        pytest.param(ScriptedEngine(context_length=4), {}, "context length", id="length refused"),
        pytest.param(answering(status=401), {}, "answered 401", id="key refused"),
    ],
)
async def test_an_engine_at_fault_is_named(
    client: EngineClient, engine: ScriptedEngine, asked: dict[str, Any], said: str
) -> None:
    async with running(engine) as url:
        [problem] = await check(client, url, **asked)
    assert said in problem


@pytest.mark.parametrize(
    ("drops", "said"),
    [
        (("input_ids", "return_meta_info"), "meta_info"),
        (("input_ids",), "prompt ids were sent but prompt_tokens is"),
        (("return_routed_experts", "routed_experts_start_len"), "routed_experts"),
    ],
)
async def test_a_router_that_drops_fields_is_at_fault(client: EngineClient, drops: tuple[str, ...], said: str) -> None:
    async with running(ScriptedEngine(moe=MoeShape())) as worker, running(DroppingRouter(worker, *drops)) as url:
        [problem] = await check(client, url, shape=SHAPE)
    assert f"the router at {url} (sglang-router) is at fault, since its worker {worker}" in problem
    assert said in problem


async def test_an_engine_behind_a_router_is_at_fault(client: EngineClient) -> None:
    async with running(ScriptedEngine()) as worker, running(DroppingRouter(worker)) as url:
        [problem] = await check(client, url, shape=SHAPE)
    assert problem.startswith(f"the worker {worker} behind {url} is at fault")
    assert "--enable-return-routed-experts" in problem


async def test_a_few_workers_are_asked_at_most(client: EngineClient) -> None:
    engines = [ScriptedEngine() for _ in range(5)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(running(engine)) for engine in engines]
        router = DroppingRouter(urls[0])
        router.others = tuple(urls[1:])
        url = await stack.enter_async_context(running(router))
        [problem] = await check(client, url, shape=SHAPE)
        for engine in engines:
            engine.moe = MoeShape()
        router.drops = ("return_routed_experts",)
        [blame] = await check(client, url, shape=SHAPE)
    assert "behind" in problem
    assert "the router at" in blame
    # The router's own call reaches the first; then three are asked, and in the second round one that answers well.
    assert sum(len(engine.probes) for engine in engines) == 1 + 3 + 1 + 1


async def test_a_router_is_as_its_workers_are(client: EngineClient) -> None:
    worker = ScriptedEngine(weight_version="5")
    async with running(worker) as worker_url, running(DroppingRouter(worker_url)) as url:
        router = SglangEngine(url, client)
        [status] = await router.fetch_status()
        assert (status.url, status.state, status.weight_version) == (url, EngineState.SERVING, "5")
        worker.pause("retract")
        assert [each.state for each in await router.fetch_status()] == [EngineState.PAUSED]
        await router.abort("r-1")
    assert worker.requests[-1].json == {"rid": "r-1", "abort_all": False}


async def test_a_router_that_lists_no_workers_cannot_end_calls(client: EngineClient) -> None:
    router = ScriptedEngine()
    router.control_answers |= dict.fromkeys(("/ready", "/model_info", "/get_model_info", "/workers"), (404, b"{}"))
    async with running(ScriptedEngine()) as worker, running(DroppingRouter(worker)) as listing, running(router) as url:
        found = [(await SglangEngine(each, client).fetch_status())[0].can_abort for each in (worker, listing, url)]
    assert found == [True, True, False]


async def test_an_engine_that_is_not_there_or_paused_is_a_state(client: EngineClient) -> None:
    engine = ScriptedEngine()
    engine.pause("retract")
    async with running(engine) as url:
        assert await check(client, url) == ()
    with unreachable_url() as url:
        [reason] = await check(client, url)
        assert url in reason
    assert not engine.probes


async def test_an_engine_that_gives_no_answer_is_said_to(client: EngineClient) -> None:
    async with running(engine := answering(wait=asyncio.Event())) as url:
        [problem] = await check(client, url, timeout_s=0.05)
    assert "no answer within 0.05 s" in problem
    aborted = [call.json["rid"] for call in engine.requests if call.path == "/abort_request"]
    assert aborted == [engine.probes[0].json["rid"]]


def test_one_sound_worker_is_enough_to_blame_the_router() -> None:
    bad = RouteCheckResult(state=RouteState.UNFIT, reason="bad")
    text = describe_fault(
        "http://r", "p", {"http://a": bad, "http://b": RouteCheckResult(state=RouteState.SOUND)}, name="smg"
    )
    assert "http://r (smg)" in text
    assert "http://b" in text


@pytest.mark.parametrize(
    ("status", "headers", "body", "name"),
    [
        (404, (("X-Smg-Error-Code", "unknown_url"),), b"{}", "smg"),
        (404, (), b"", "sglang-router"),
        (404, (), b"Not Found", "a router"),
        (200, (), b"", "a router"),
    ],
)
def test_routers_are_told_by_how_they_refuse(
    status: int, headers: tuple[tuple[str, str], ...], body: bytes, name: str
) -> None:
    assert read_router_name(HttpReply(url="http://r", status=status, headers=headers, body=body)) == name


@pytest.mark.parametrize(
    ("error", "state", "is_fatal"),
    [
        pytest.param(EngineProtocolError("no meta_info"), RouteState.UNFIT, True, id="broken"),
        pytest.param(EngineProtocolError("bad rows", fault="repeated"), RouteState.UNFIT, True, id="rows"),
        pytest.param(EngineRefusedError("no", engine_status=400), RouteState.UNFIT, False, id="refused"),
        pytest.param(
            EngineRefusedError("request received without bootstrap room id", engine_status=400),
            RouteState.UNFIT,
            True,
            id="half a pair",
        ),
        pytest.param(EngineError("no", engine_status=401), RouteState.UNFIT, False, id="key"),
        pytest.param(EngineError("reset"), RouteState.UNCHECKED, False, id="gone"),
        pytest.param(EngineError("busy", engine_status=503), RouteState.UNCHECKED, False, id="paused"),
        pytest.param(EngineRefusedError("busy", engine_status=429), RouteState.UNCHECKED, False, id="busy"),
        pytest.param(EngineTimeoutError("late"), RouteState.UNCHECKED, False, id="late"),
    ],
)
def test_what_an_error_says_of_a_route(error: TurnkeeperError, state: RouteState, is_fatal: bool) -> None:
    result = classify_error(error)
    assert (result.state, result.is_fatal) == (state, is_fatal)
    assert error.message in result.reason


def test_rows_that_turns_would_mask_stop_no_turn() -> None:
    bad = EngineProtocolError("bad rows", fault="repeated")
    assert not classify_error(bad, OnBadRows.MASK).is_fatal
    assert classify_error(EngineProtocolError("no routed_experts"), OnBadRows.MASK).is_fatal


class Loaded(ScriptedEngine):
    """An engine that lists these models, and refuses other adapters where it looks at them at all."""

    def __init__(self, *models: str, refuses: bool = False) -> None:
        super().__init__()
        self.models = models
        self.refuses = refuses
        entries = [{"id": name, "object": "model"} for name in models]
        self.control_answers["/v1/models"] = (200, orjson.dumps({"object": "list", "data": entries}))

    def find_problem(self, body: dict[str, Any]) -> str | None:
        if self.refuses and body.get("lora_path") not in (None, *self.models):
            return f"the adapter {body['lora_path']} is not loaded"
        return super().find_problem(body)


ADAPTERS = {
    "loaded": (Loaded("base", "mine", refuses=True), ()),
    "ignored": (Loaded("base"), ("does not know the adapter 'mine'", "may sample the base weights")),
    "refused": (Loaded("base", refuses=True), ("does not know the adapter 'mine'", "mine is not loaded")),
}


@pytest.mark.parametrize(("engine", "said"), ADAPTERS.values(), ids=ADAPTERS.keys())
async def test_an_engine_that_does_not_know_the_adapter_is_named(
    client: EngineClient, engine: ScriptedEngine, said: tuple[str, ...]
) -> None:
    async with running(engine) as url:
        found = await check_route(
            url,
            client,
            require(IDS, lora_name="mine"),
            connect=lambda each: SglangEngine(each, client),
            timeout_s=5.0,
        )
    assert found.result.state is (RouteState.UNFIT if said else RouteState.SOUND)
    assert not found.result.is_fatal  # a trainer may load it with its first weight update
    assert all(each in found.result.reason for each in said)
    assert all(each in found.result.reason for each in (url,) if said)
