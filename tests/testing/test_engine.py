"""The scripted engine keeps the promises that tests build on.

1. Generate calls take the script's entries in the order of arrival, then the default; every request is recorded.
2. A default reply is sound: counts agree, ids end in the stop id, rows cover prompt and completion.
3. Members of ``meta_info`` come only when they are asked for, as the real wire has it.
4. Faults strike where they say; raw bodies and any status go out as they stand.
5. A wait ends by its event, by an abort (partial or waiting kind), by a pause that aborts, by a client that leaves.
6. A paused engine holds new requests back and says so on ``/ready``; versions follow updates.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import numpy as np
import orjson
import pybase64
import pytest

from turnkeeper.testing import MoeShape, Phase, ScriptedEngine, ScriptedReply, running, unreachable_url
from turnkeeper.testing.script import scripted_rows

PROMPT = [5, 6, 7]


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def body(**fields: Any) -> dict[str, Any]:
    return {
        "input_ids": PROMPT,
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "return_meta_info": True,
        **fields,
    }


async def chat(http: aiohttp.ClientSession, url: str, **fields: Any) -> dict[str, Any]:
    async with http.post(f"{url}/v1/chat/completions", json=body(**fields)) as response:
        assert response.status == 200
        return orjson.loads(await response.read())["choices"][0]


async def test_calls_take_the_script_in_order_then_the_default(http: aiohttp.ClientSession) -> None:
    engine = ScriptedEngine([ScriptedReply(text="a"), ScriptedReply(text="b")], default=ScriptedReply(text="z"))
    async with running(engine) as url:
        texts = [(await chat(http, url))["message"]["content"] for _ in range(4)]
        assert texts == ["a", "b", "z", "z"]
        async with http.get(f"{url}/v1/models?x=1") as response:
            assert response.status == 200
    assert [call.json["input_ids"] for call in engine.generations] == [PROMPT] * 4
    assert (engine.requests[-1].path, engine.requests[-1].query) == ("/v1/models", "x=1")
    assert engine.requests[0].header("content-type") == "application/json"


async def test_a_function_may_make_the_reply_from_the_request(http: aiohttp.ClientSession) -> None:
    engine = ScriptedEngine(default=lambda call: ScriptedReply(text=call.json["messages"][0]["content"].upper()))
    async with running(engine) as url:
        assert (await chat(http, url))["message"]["content"] == "HI"


async def test_a_default_reply_is_sound(http: aiohttp.ClientSession) -> None:
    async with running(ScriptedEngine(moe=MoeShape(layers=3, topk=2, experts=5), stop_id=9)) as url:
        choice = await chat(http, url, return_routed_experts=True, routed_experts_start_len=2)
    meta = choice["meta_info"]
    ids = [entry[1] for entry in meta["output_token_logprobs"]]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(PROMPT), len(ids))
    assert ids[-1] == 9 == choice["matched_stop"]
    rows = np.frombuffer(pybase64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, 3, 2)
    assert len(rows) == len(PROMPT) + len(ids) - 1 - 2
    assert np.array_equal(rows, scripted_rows(PROMPT + ids, layers=3, topk=2, experts=5)[2:])
    assert (rows[:, :, 0] != rows[:, :, 1]).all()


async def test_members_come_only_when_asked_for(http: aiohttp.ClientSession) -> None:
    async with running(ScriptedEngine(moe=MoeShape())) as url:
        assert "routed_experts" not in (await chat(http, url))["meta_info"]
        assert "meta_info" not in await chat(http, url, return_meta_info=False)
    async with running(ScriptedEngine()) as url:
        assert "routed_experts" not in (await chat(http, url, return_routed_experts=True))["meta_info"]


async def test_the_generate_route_answers_its_own_shape(http: aiohttp.ClientSession) -> None:
    engine = ScriptedEngine([ScriptedReply(text="x", ids=[40, 2])])
    async with running(engine) as url, http.post(f"{url}/generate", json={"input_ids": PROMPT}) as response:
        value = await response.json()
    assert (value["text"], value["output_ids"], value["meta_info"]["prompt_tokens"]) == ("x", [40, 2], 3)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        pytest.param(ScriptedReply(fault=Phase.HEADERS), aiohttp.ServerDisconnectedError, id="before the headers"),
        pytest.param(ScriptedReply(fault=Phase.BODY), aiohttp.ClientPayloadError, id="inside the body"),
        pytest.param(ScriptedReply(fault=Phase.TRUNCATED), orjson.JSONDecodeError, id="json cut short"),
        pytest.param(ScriptedReply(body=b"<html>"), orjson.JSONDecodeError, id="html"),
    ],
)
async def test_faults_strike_where_they_say(
    http: aiohttp.ClientSession, reply: ScriptedReply, expected: type[Exception]
) -> None:
    async with running(ScriptedEngine([reply])) as url:
        with pytest.raises(expected):
            await chat(http, url)
        assert (await chat(http, url))["finish_reason"] == "stop", "the next call is served"


async def test_a_connection_can_be_refused(http: aiohttp.ClientSession) -> None:
    with unreachable_url() as url, pytest.raises(aiohttp.ClientConnectorError):
        await chat(http, url)


async def test_any_status_with_headers(http: aiohttp.ClientSession) -> None:
    engine = ScriptedEngine([ScriptedReply(status=429, headers={"Retry-After": "7"})])
    async with running(engine) as url, http.post(f"{url}/v1/chat/completions", json=body()) as response:
        assert (response.status, response.headers["retry-after"]) == (429, "7")


async def test_a_chat_call_without_ids_is_rendered_by_the_engine(http: aiohttp.ClientSession) -> None:
    async with running(ScriptedEngine()) as url:
        assert (await chat(http, url, input_ids=None))["meta_info"]["prompt_tokens"] == len("hi")


async def test_the_last_word_is_the_edit(http: aiohttp.ClientSession) -> None:
    def spoil(reply: dict[str, Any]) -> None:
        reply["choices"][0]["meta_info"]["output_token_logprobs"][0][0] = float("-inf")

    engine = ScriptedEngine([ScriptedReply(edit=spoil)])
    async with running(engine) as url, http.post(f"{url}/v1/chat/completions", json=body()) as response:
        assert b"-Infinity" in await response.read()


async def test_what_the_engine_cannot_take_is_a_400(http: aiohttp.ClientSession) -> None:
    async with running(ScriptedEngine(context_length=4)) as url:
        for fields in ({"input_ids": None, "messages": []}, {"input_ids": [1] * 4}, {"routed_experts_start_len": 4}):
            async with http.post(f"{url}/v1/chat/completions", json=body(**fields)) as response:
                assert response.status == 400


@pytest.mark.parametrize("partial", [3, None], ids=["running", "waiting"])
async def test_an_abort_ends_a_wait(http: aiohttp.ClientSession, partial: int | None) -> None:
    engine = ScriptedEngine([ScriptedReply(text="abcdef", wait=asyncio.Event(), partial=partial)], moe=MoeShape())
    async with running(engine) as url:
        call = asyncio.create_task(chat(http, url, rid="r1", return_routed_experts=True))
        await engine.wait_for_generations(1)
        async with http.post(f"{url}/abort_request", json={"rid": "r1", "abort_all": False}):
            choice = await call
    assert choice["finish_reason"] == "abort"
    assert choice["meta_info"]["completion_tokens"] == (partial or 0)
    assert (
        ("routed_experts" in choice["meta_info"]) == ("prompt_tokens" in choice["meta_info"]) == (partial is not None)
    )


async def test_a_pause_holds_requests_back_and_shows(http: aiohttp.ClientSession) -> None:
    engine = ScriptedEngine()
    async with running(engine) as url:
        async with http.post(f"{url}/pause_generation", json={"mode": "retract"}):
            call = asyncio.create_task(chat(http, url))
        await engine.wait_for_generations(1)
        async with http.get(f"{url}/ready") as response:
            assert response.status == 503
        assert not call.done()
        async with (
            http.post(f"{url}/update_weight_version", json={"new_version": "8", "abort_all_requests": False}),
            http.post(f"{url}/continue_generation", json={}),
        ):
            choice = await call
    assert (choice["finish_reason"], choice["meta_info"]["weight_version"]) == ("stop", "8")


async def test_a_pause_that_aborts_ends_calls_in_flight(http: aiohttp.ClientSession) -> None:
    engine = ScriptedEngine([ScriptedReply(wait=asyncio.Event(), partial=1)])
    async with running(engine) as url:
        call = asyncio.create_task(chat(http, url))
        await engine.wait_for_generations(1)
        async with http.post(f"{url}/pause_generation", json={}):
            assert (await call)["finish_reason"] == "abort"


async def test_a_client_that_leaves_aborts_its_call(http: aiohttp.ClientSession) -> None:
    engine = ScriptedEngine([ScriptedReply(wait=asyncio.Event())])
    async with running(engine) as url:
        call = asyncio.create_task(chat(http, url))
        await engine.wait_for_generations(1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert engine.hang_ups == 1
    assert engine.in_flight == 0
