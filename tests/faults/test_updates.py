"""Weight updates, pauses and aborts as an agent and a trainer meet them, over HTTP.

1. A turn that a weight update aborts is continued or answered as `--on-abort` says: one reply, one turn, its pieces
   joined right; an engine that always aborts is given up.
2. Any other abort is final, for one turn or for 64, with no second engine call, and at once where the trainer says so.
3. The gate holds turns back while the engines are paused, told or not, up to a deadline; health says which it is.
4. Pausing through the server reaches every engine, or changes nothing.
5. Versions are those of the engine's reply, and publishing a label aborts nothing.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
import numpy as np
import pytest

from httpkit import Reply, Site, running_site, serving
from servicekit import get_renderer, user
from turnkeeper.choices import OnAbort, PauseMode
from turnkeeper.engines import EngineClient
from turnkeeper.fleet import EngineFleet
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import MoeShape, RecordedRequest, ScriptedEngine, ScriptedReply, running, unreachable_url
from turnkeeper.testing.script import scripted_rows

MODES = pytest.mark.parametrize("mode", list(PauseMode))
CHOICES = pytest.mark.parametrize("on_abort", list(OnAbort))
REPLAY: dict[str, Any] = {
    "use_rollout_routing_replay": True,
    "num_layers": 2,
    "moe_router_topk": 2,
    "num_experts": 8,
}
FIRST, SECOND = (73, 74, 181, 262), (255, 231, 96, 97, 98, 22)
"""The ids of "ab", of an emoji, and of "xyz.", cut in the middle of the emoji."""

CUT = "ab\N{GRINNING FACE}xyz."


def build_engine(*script: ScriptedReply, **options: Any) -> ScriptedEngine:
    encode = get_renderer().tokenizer.encode
    return ScriptedEngine(script, encode=lambda text: encode(text).tolist(), **options)


def build_partial(*ids: int) -> ScriptedReply:
    """A reply that does not come; an abort finds these ids sampled."""
    return ScriptedReply(ids=ids, partial=len(ids), wait=asyncio.Event())


async def pause(site: Site, mode: str = "abort", *, forward: bool = True) -> Reply:
    return await site.call("POST", "/engine/pause", {"mode": mode, "forward": forward})


async def resume(site: Site, *, forward: bool = True) -> Reply:
    return await site.call("POST", "/engine/continue", {"forward": forward})


async def collect(site: Site, session: str) -> list[Sample]:
    reply = await site.call("POST", f"{session}/samples", {})
    assert reply.status == 200, reply.body
    return list(decode_samples(reply.body).samples)


async def show(site: Site, session: str) -> dict[str, Any]:
    return (await site.call("GET", session)).json()


@asynccontextmanager
async def aborted_turn(engine: ScriptedEngine, mode: str = "abort", **options: Any) -> AsyncGenerator[Any]:
    """A turn that an update has aborted; the engines are paused."""
    fields = options.pop("fields", {})
    async with running_site(engine, pause_generation_mode=mode, **options) as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")], **fields))
        await engine.wait_for_generations(1)
        assert (await pause(site, mode)).status == 200
        engine.abort()
        yield site, session, turn


# Continued


@MODES
async def test_a_resumed_turn_is_one_turn(mode: PauseMode) -> None:
    engine = build_engine(
        build_partial(*FIRST), ScriptedReply(ids=SECOND, finish_reason="length", rows_salt=1), moe=MoeShape()
    )
    options = {"on_abort": "resume", "fields": {"max_tokens": 10}, **REPLAY}
    async with aborted_turn(engine, mode, **options) as (site, session, turn):
        engine.weight_version = "2"
        await resume(site)
        reply = (await turn).json()
        first, second = (request.json for request in engine.generations)
        prompt = len(first["input_ids"])
        assert second["input_ids"] == [*first["input_ids"], *FIRST]
        assert (first["max_tokens"], second["max_tokens"]) == (10, 6)
        sent = None if mode is PauseMode.RETRACT else prompt + 3
        assert second.get("routed_experts_start_len") == sent
        assert reply["choices"][0]["message"]["content"] == CUT
        assert reply["choices"][0]["finish_reason"] == "length"
        usage = {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": prompt + 10}
        assert reply["usage"].items() >= usage.items()
        (record,) = (await show(site, session))["records"]
        pairs = record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
        assert [pair[1] for pair in pairs] == [*FIRST, *SECOND]
        (sample,) = await collect(site, session)
        assert sample.loss_mask.tolist() == [1] * 10
        assert len(sample.rollout_log_probs) == sample.response_length == 10
        assert sample.response == CUT
        old, new = (scripted_rows(sample.tokens, layers=2, topk=2, experts=8, salt=salt) for salt in (0, 1))
        assert len(old) == prompt + 9
        rows = sample.rollout_routed_experts
        assert rows is not None
        assert np.array_equal(rows, np.concatenate([old[: prompt + 3], new[prompt + 3 :]]))


async def test_a_restarted_turn_has_one_version_and_accounts_for_its_first_try() -> None:
    engine = build_engine(build_partial(*FIRST), moe=MoeShape())
    async with aborted_turn(engine, on_abort="restart", **REPLAY) as (site, session, turn):
        engine.weight_version = "2"
        await resume(site)
        assert (await turn).status == 200
        first, second = (request.json for request in engine.generations)
        assert first["input_ids"] == second["input_ids"]
        assert first["rid"] != second["rid"]
        (sample,) = await collect(site, session)
        assert list(sample.weight_versions) == ["2"]
        assert (await show(site, session))["metadata"]["turnkeeper"]["accounting"]["dropped"] == {"aborted_piece": 4}


@pytest.mark.parametrize("on_abort", [OnAbort.RESTART, OnAbort.RESUME])
async def test_a_turn_that_was_aborted_before_its_first_token_is_generated_again(on_abort: OnAbort) -> None:
    engine = build_engine(ScriptedReply(wait=asyncio.Event()), moe=MoeShape())
    async with aborted_turn(engine, on_abort=on_abort, **REPLAY) as (site, session, turn):
        await resume(site)
        assert (await turn).status == 200
        assert len(engine.generations) == 2
        assert len((await show(site, session))["records"]) == 1


async def test_under_fail_the_agent_is_told_to_come_back() -> None:
    engine = build_engine(build_partial(*FIRST))
    async with aborted_turn(engine, on_abort="fail") as (site, session, turn):
        refused = await turn
        assert (refused.status, refused.json()["error"]["code"]) == (503, "engine_paused")
        assert int(refused.headers["retry-after"]) > 0
        assert "x-should-retry" not in refused.headers
        assert (await show(site, session))["records"] == []
        await resume(site)
        assert (await site.chat(session, [user("a")])).status == 200


@pytest.mark.parametrize("on_abort", [OnAbort.RESTART, OnAbort.RESUME])
async def test_an_engine_that_always_aborts_is_given_up(on_abort: OnAbort) -> None:
    versions = count(1)

    def abort(request: RecordedRequest) -> ScriptedReply:
        return ScriptedReply(ids=(73,), finish_reason="abort", weight_version=str(next(versions)))

    engine = build_engine(default=abort)
    async with running_site(engine, on_abort=on_abort, abort_attempts=2) as site:
        session = await site.create()
        refused = await site.chat(session, [user("a")])
        assert (refused.status, refused.json()["error"]["code"]) == (503, "engine_paused")
        assert len(engine.generations) == 3
        assert (await show(site, session))["records"] == []


# Final


@pytest.mark.parametrize("ids", [FIRST + SECOND[:3], ()], ids=["seven tokens", "no token"])
async def test_an_abort_that_no_update_explains_is_final(ids: tuple[int, ...]) -> None:
    gone = {} if ids else {"prompt_tokens": None, "cached_tokens": None, "routed_experts": None}
    engine = build_engine(ScriptedReply(ids=ids, finish_reason="abort", meta=gone), moe=MoeShape())
    async with running_site(engine, abort_grace=0.01, **REPLAY) as site:
        session = await site.create()
        refused = await site.chat(session, [user("a")])
        assert (refused.status, refused.json()["error"]["code"]) == (503, "turn_aborted")
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        assert len(engine.generations) == 1
        assert (await show(site, session))["records"] == []


@CHOICES
async def test_a_trainer_that_aborts_64_turns_gets_them_all_back(on_abort: OnAbort) -> None:
    engine = build_engine(default=build_partial(*FIRST))
    async with running_site(engine, on_abort=on_abort, abort_grace=0.1) as site, asyncio.timeout(30):
        sessions = await asyncio.gather(*(site.create() for _ in range(64)))
        turns = [asyncio.create_task(site.chat(session, [user("a")])) for session in sessions]
        await engine.wait_for_generations(64)
        engine.abort()
        replies = await asyncio.gather(*turns)
        assert {(reply.status, reply.headers.get("x-should-retry")) for reply in replies} == {(503, "false")}
        assert len(engine.generations) == 64
        assert [(await show(site, session))["records"] for session in sessions] == [[]] * 64


async def test_the_trainers_word_ends_64_turns_at_once() -> None:
    engine = build_engine(default=build_partial(*FIRST))
    async with running_site(engine, abort_grace=3600) as site, asyncio.timeout(30):
        sessions = await asyncio.gather(*(site.create() for _ in range(64)))
        turns = [asyncio.create_task(site.chat(session, [user("a")])) for session in sessions]
        await engine.wait_for_generations(64)
        assert (await site.call("POST", "/engine/abort")).status == 200
        engine.abort()
        replies = await asyncio.gather(*turns)
        assert {(reply.status, reply.headers.get("x-should-retry")) for reply in replies} == {(503, "false")}
        assert len(engine.generations) == 64
        assert (await site.chat(sessions[0], [user("a")])).status == 404
        engine.default = ScriptedReply()
        assert (await site.chat(await site.create(), [user("a")])).status == 200


# The gate


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("chat/completions", {}, 503),
        ("messages", {"max_tokens": 9, "model": "policy"}, 529),
        ("responses", {"model": "policy"}, 503),
    ],
)
async def test_turns_wait_at_the_gate_up_to_its_deadline(path: str, body: dict[str, Any], status: int) -> None:
    async with running_site(gate_timeout=0.05) as site:
        session = await site.create()
        assert (await pause(site, "retract", forward=False)).json()["state"] == "paused"
        assert not site.engine.is_paused, "it was not asked to tell the engine"
        asked = {**body, "input" if path == "responses" else "messages": [user("a")]}
        refused = await site.call("POST", f"{session}/v1/{path}", asked)
        assert refused.status == status
        assert int(refused.headers["retry-after"]) > 0
        assert site.engine.generations == []
        assert (await resume(site, forward=False)).json()["state"] == "serving"
        assert (await site.call("POST", f"{session}/v1/{path}", asked)).status == 200


async def read_engine_state(site: Site) -> str:
    return (await site.call("GET", "/health")).json()["engine"]


async def wait_for_state(site: Site, state: str) -> None:
    async with asyncio.timeout(10):
        while await read_engine_state(site) != state:  # noqa: ASYNC110 - health is what is tested
            await asyncio.sleep(0)


@MODES
async def test_an_engine_that_pauses_on_its_own_is_noticed(mode: PauseMode) -> None:
    async with running_site(probe_interval=0.02, pause_generation_mode=mode) as site:
        session = await site.create()
        assert await read_engine_state(site) == "serving"
        site.engine.pause(mode)
        await wait_for_state(site, "paused")
        turn = asyncio.create_task(site.chat(session, [user("a")]))
        looks = len(site.engine.requests)
        async with asyncio.timeout(10):
            while len(site.engine.requests) < looks + 4:  # noqa: ASYNC110 - two more looks at the engine
                await asyncio.sleep(0)
        assert site.engine.generations == []
        site.engine.resume()
        assert (await turn).status == 200
        assert await read_engine_state(site) == "serving"


async def test_a_turn_that_an_engine_aborts_by_pausing_on_its_own_is_continued() -> None:
    engine = build_engine(build_partial(*FIRST))
    async with running_site(engine, pause_generation_mode="abort") as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")]))
        await engine.wait_for_generations(1)
        engine.pause("abort")
        await wait_for_state(site, "paused")
        engine.resume()
        assert (await turn).status == 200
        assert len(engine.generations) == 2


async def test_health_says_that_no_engine_can_be_reached() -> None:
    with unreachable_url() as nowhere:
        async with serving(nowhere, probe_interval=0.02) as (url, parts), aiohttp.ClientSession() as http:
            site = Site(url=url, engine_url=nowhere, engine=build_engine(), parts=parts, http=http)
            await wait_for_state(site, "unreachable")


# Control


async def test_a_pause_that_one_of_two_engines_refuses_changes_nothing() -> None:
    first, second = build_engine(), build_engine()
    second.control_answers["/pause_generation"] = (500, b"{}")
    async with running(first) as one, running(second) as two, running_site(first, backend_url=[one, two]) as site:
        session = await site.create()
        refused = await pause(site, "in_place")
        assert (refused.status, refused.json()["code"]) == (502, "engine")
        assert two in refused.json()["error"]
        assert not first.is_paused
        assert await read_engine_state(site) == "serving"
        assert (await site.chat(session, [user("a")])).status == 200
        second.control_answers.clear()
        assert (await pause(site, "in_place")).json()["engines"] == [
            {"url": url, "ok": True, "error": None} for url in (one, two)
        ]
        assert (first.is_paused, second.is_paused) == (True, True)
        assert (await pause(site, "abort")).status == 400
        assert (await pause(site, "in_place")).status == 200
        assert (await resume(site)).json()["mode"] is None
        assert (first.is_paused, second.is_paused) == (False, False)
        assert (await resume(site)).status == 200


# Versions


async def test_publishing_a_label_aborts_nothing() -> None:
    engine = build_engine(default=ScriptedReply(text="whole", wait=asyncio.Event()))
    async with running_site(engine, pause_generation_mode="in_place") as site:
        sessions = [await site.create() for _ in range(8)]
        turns = [asyncio.create_task(site.chat(session, [user("a")])) for session in sessions]
        await engine.wait_for_generations(8)
        client = EngineClient()
        fleet = EngineFleet([site.engine_url], client=client, mode=PauseMode.IN_PLACE, session_servers=[site.url])
        async with fleet.paused("2"):
            assert await read_engine_state(site) == "paused"
        await client.close()
        assert engine.default.wait is not None
        engine.default.wait.set()
        assert {(await turn).status for turn in turns} == {200}
        assert len(engine.generations) == 8
        (label,) = [request.json for request in engine.requests if request.path == "/update_weight_version"]
        assert label == {"new_version": "2", "abort_all_requests": False}
        assert not [request for request in engine.requests if request.path == "/flush_cache"]


@pytest.mark.parametrize(("is_told", "expected"), [(False, "7"), (True, None)])
async def test_the_version_is_that_of_the_reply_and_unknown_stays_unknown(is_told: bool, expected: str | None) -> None:
    release = asyncio.Event()
    engine = build_engine(ScriptedReply(weight_version="7", wait=release), weight_version="7")
    async with running_site(engine, pause_generation_mode="retract") as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")]))
        await engine.wait_for_generations(1)
        if is_told:
            await pause(site, "retract", forward=False)
            await resume(site, forward=False)
        engine.weight_version = "8"
        release.set()
        assert (await turn).status == 200
        (sample,) = await collect(site, session)
        assert [span["version"] for span in sample.metadata["turnkeeper"]["versions"]] == [expected]
