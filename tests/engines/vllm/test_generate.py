"""vLLM's token-in wires.

1. Both bodies carry the ids, vLLM's names, and one logprob a token; neither asks vLLM to parse anything.
2. The completions route is told how much fits; a cache salt and the request's id are what vLLM takes.
3. A forced tool call is refused.
4. A server without the generate route is found out once, and then streams where nothing is lost by it.
5. A stream has the rows and the counts of the plain reply.
6. Probes and aborts use vLLM's routes, as far as the server has them; a pause that refuses calls is told apart.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest

from engines.builders import make_request
from turnkeeper.channels.routing import RoutingShape, RowsRequest, take_patch
from turnkeeper.core.tokens import TokenIds
from turnkeeper.engines import EngineClient, EngineState, GenerateRequest, VllmEngine
from turnkeeper.engines.vllm.generate import fit_salt, render_completions_body, render_generate_body
from turnkeeper.errors import ContextLengthError, EngineError, EngineRefusedError
from turnkeeper.testing import MoeShape, ScriptedReply, ScriptedVllm, running, unreachable_url
from turnkeeper.testing.script import scripted_rows

ROWS = RowsRequest(start_len=4, held_rows=4)
SAMPLING = {"max_tokens": 9, "temperature": 0.5, "seed": 3, "stop": ["x"], "top_p": None}
GENERATE, MODELS, COMPLETIONS = "/inference/v1/generate", "/v1/models", "/v1/completions"


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    return {"role": "assistant", "content": f"parsed {len(ids)}"}


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


def test_the_generate_body_carries_ids_and_what_vllm_calls_the_rest() -> None:
    request = make_request(
        sampling={**SAMPLING, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}},
        tools=({"type": "function", "function": {"name": "f"}},),
        forwarded={"tool_choice": "auto"},
        stop_token_ids=(2,),
        rows=ROWS,
        cache_salt="v",
    )
    assert json.loads(render_generate_body(request)) == {
        "token_ids": [11, 12, 13, 14, 15],
        "request_id": "rid-1",
        "sampling_params": {
            "max_tokens": 9,
            "temperature": 0.5,
            "seed": 3,
            "stop": ["x"],
            "stop_token_ids": [2],
            "routed_experts_prompt_start": 4,
            "structured_outputs": {"json": {"type": "null"}},
            "logprobs": 0,
            "skip_special_tokens": False,
            "detokenize": True,
        },
        "stream": False,
        "cache_salt": "v",
    }


def test_without_a_budget_or_stop_strings_the_server_takes_what_fits_and_spells_nothing() -> None:
    body = json.loads(render_generate_body(make_request(), is_stream=True))
    assert body["sampling_params"] == {"logprobs": 0, "skip_special_tokens": False, "detokenize": False}
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_the_completions_body_asks_for_ids() -> None:
    body = json.loads(render_completions_body(make_request(sampling=SAMPLING), "m", 100))
    assert body == {
        "prompt": [11, 12, 13, 14, 15],
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 3,
        "stop": ["x"],
        "logprobs": 0,
        "skip_special_tokens": False,
        "stream": False,
        "n": 1,
        "return_token_ids": True,
        "return_weight_versions": True,
        "request_id": "rid-1",
    }


@pytest.mark.parametrize(
    ("asked", "length", "sent"),
    [
        pytest.param(None, 100, 95, id="none asked: all that fits"),
        pytest.param(50, 100, 50, id="less than fits"),
        pytest.param(500, 100, 95, id="more than fits"),
        pytest.param(50, 5, 1, id="nothing fits: the server refuses the prompt"),
        pytest.param(50, None, 50, id="no length known"),
    ],
)
def test_the_completions_route_is_told_how_much_fits(asked: int | None, length: int | None, sent: int) -> None:
    request = make_request(sampling={} if asked is None else {"max_tokens": asked})
    assert json.loads(render_completions_body(request, "m", length))["max_tokens"] == sent


@pytest.mark.parametrize(
    ("salt", "is_kept"),
    [("5e5e:7", True), ("s:a+b", True), ("s:org/step-8", False), ("a@b", False), ("s" * 129, False), ("a\\b", False)],
)
def test_a_salt_that_vllm_refuses_is_replaced_by_its_digest(salt: str, is_kept: bool) -> None:
    found = fit_salt(salt)
    assert (found == salt) is is_kept
    assert len(found) <= 128
    assert not set(found) & set("@/\\\0")
    assert found != fit_salt(salt + "x")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_tool_call_is_refused(choice: object) -> None:
    with pytest.raises(EngineRefusedError, match="forces a call"):
        render_generate_body(make_request(forwarded={"tool_choice": choice}))


async def test_an_attempt_is_called_by_its_own_id_whatever_the_client_calls_its_request(client: EngineClient) -> None:
    engine = ScriptedVllm(default=ScriptedReply(ids=[20, 2]))
    trace = {"x-request-id": "the client's", "traceparent": "00-1-2-01"}
    async with running(engine) as url:
        found = await VllmEngine(url, client, parse).generate(make_request(trace=trace))
    assert found.response_id == "generate-tokens-rid-1"
    headers = engine.requests[0].headers
    assert [value for name, value in headers if name == "x-request-id"] == ["rid-1"]
    assert ("traceparent", "00-1-2-01") in headers


async def test_a_stream_has_the_rows_and_the_counts_of_the_plain_reply(client: EngineClient) -> None:
    async with running(ScriptedVllm(default=ScriptedReply(ids=range(20, 27)), moe=MoeShape())) as url:
        wire = VllmEngine(url, client, parse)
        seen: list[int] = []
        streamed = await wire.generate(make_request(rows=ROWS), on_ids=lambda ids: seen.extend(ids.tolist()))
        plain = await wire.generate(make_request(rows=ROWS))
    assert seen == list(range(20, 27))
    assert streamed.payloads.get("routed_experts") == plain.payloads.get("routed_experts") is not None
    assert streamed.logprobs.tolist() == plain.logprobs.tolist()
    assert (streamed.prompt_tokens, streamed.completion_tokens, streamed.spans) == (5, 7, plain.spans)
    assert streamed.message["content"] == "parsed 7"


async def test_rows_describe_themselves_and_start_where_asked(client: EngineClient) -> None:
    async with running(ScriptedVllm([ScriptedReply(ids=[20, 21, 2])], moe=MoeShape())) as url:
        found = await VllmEngine(url, client, parse).generate(make_request(rows=ROWS))
    patch = take_patch(
        found.payloads.get("routed_experts"),
        request=ROWS,
        shape=RoutingShape(layers=2, topk=2, experts=8),
        prompt_tokens=5,
        completion_tokens=3,
    )
    expected = scripted_rows([11, 12, 13, 14, 15, 20, 21, 2], layers=2, topk=2, experts=8)[4:]
    assert np.array_equal(patch.rows.experts_RLK, expected)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_server_without_the_generate_route_is_found_out_once(client: EngineClient, is_stream: bool) -> None:
    engine = ScriptedVllm(default=ScriptedReply(ids=[20, 2]))
    engine.has_generate_route = False
    seen: list[int] = []
    async with running(engine) as url:
        wire = VllmEngine(url, client, parse)
        sink = (lambda ids: seen.extend(ids.tolist())) if is_stream else None
        replies = [await wire.generate(make_request(), on_ids=sink) for _ in range(2)]
    assert [found.message["content"] for found in replies] == ["parsed 2"] * 2
    assert [call.path for call in engine.requests] == [GENERATE, MODELS, COMPLETIONS, COMPLETIONS]
    assert engine.requests[-1].json["max_tokens"] == 32768 - 5
    assert seen == ([20, 2, 20, 2] if is_stream else [])


async def test_completions_with_rows_are_not_streamed_since_their_streams_have_none(client: EngineClient) -> None:
    engine = ScriptedVllm(default=ScriptedReply(ids=[20, 2]), moe=MoeShape())
    engine.has_generate_route = False
    seen: list[int] = []
    async with running(engine) as url:
        wire = VllmEngine(url, client, parse)
        found = await wire.generate(make_request(rows=ROWS), on_ids=lambda ids: seen.extend(ids.tolist()))
    assert found.payloads.get("routed_experts") is not None
    assert not seen


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_error_of_the_first_call_does_not_hide_the_generate_route(
    client: EngineClient, is_stream: bool
) -> None:
    engine = ScriptedVllm(context_length=5)
    async with running(engine) as url:
        wire = VllmEngine(url, client, parse)
        for _ in range(2):
            with pytest.raises(ContextLengthError, match="maximum model length of 5") as caught:
                await wire.generate(make_request(), on_ids=(lambda ids: None) if is_stream else None)
            assert (caught.value.facts["prompt_tokens"], caught.value.facts["limit_tokens"]) == (5, 5)
    assert {call.path for call in engine.requests} == {GENERATE}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_pause_that_refuses_calls_is_told_apart(client: EngineClient, is_stream: bool) -> None:
    engine = ScriptedVllm()
    async with running(engine) as url:
        engine.pause("abort")
        sink = (lambda ids: None) if is_stream else None
        with pytest.raises(EngineError, match="Generation is paused") as caught:
            await VllmEngine(url, client, parse).generate(make_request(), on_ids=sink)
    assert (caught.value.facts["engine_paused"], caught.value.facts["engine_status"]) == (True, 503)


async def test_probes_and_aborts_use_vllms_routes(client: EngineClient) -> None:
    engine = ScriptedVllm(weight_version="7", context_length=64)
    async with running(engine) as url:
        wire = VllmEngine(url, client, parse)
        [status] = await wire.fetch_status()
        assert (status.state, status.kind, status.model) == (EngineState.SERVING, "vllm", "scripted")
        assert (status.weight_version, status.context_length) == ("7", 64)
        engine.pause("retract")
        assert [r.state for r in await wire.fetch_status()] == [EngineState.PAUSED]
        await wire.abort("r-1")
        assert (engine.requests[-1].path, engine.requests[-1].json) == (
            "/abort_requests",
            {"request_ids": ["generate-tokens-r-1", "cmpl-r-1-0"]},
        )
    with unreachable_url() as url:
        assert [r.state for r in await VllmEngine(url, client, parse).fetch_status()] == [EngineState.UNREACHABLE]
        await VllmEngine(url, client, parse).abort("r-1")


async def test_a_server_in_production_mode_tells_neither_pauses_nor_versions(client: EngineClient) -> None:
    engine = ScriptedVllm(default=ScriptedReply(ids=[20, 2]))
    engine.has_dev_routes = False
    async with running(engine) as url:
        wire = VllmEngine(url, client, parse)
        [status] = await wire.fetch_status()
        assert (status.state, status.weight_version, status.model) == (EngineState.SERVING, None, "scripted")
        await wire.generate(make_request())
        await wire.abort("r-1")
    assert engine.requests[-1].path == "/inference/v1/abort_requests"
