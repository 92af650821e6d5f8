"""vLLM's token-in wires.

1. Both bodies carry the ids, vLLM's names, and one logprob a token.
2. Replies of both routes are translated: parsed message or our parser, clamped logprobs, spans, self-describing rows.
3. A server without the generate route is found out once.
4. What is no reply is refused; probes and aborts use vLLM's routes.
"""

import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest

from engines.builders import make_request
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import VersionSpan
from turnkeeper.engines.check import check_generation
from turnkeeper.engines.engine import EngineState, GenerateRequest
from turnkeeper.engines.http import EngineClient
from turnkeeper.engines.vllm import VllmEngine, render_completions_body, render_generate_body
from turnkeeper.engines.vllmreply import StreamedChoice, parse_vllm_reply
from turnkeeper.errors import EngineError, EngineProtocolError
from turnkeeper.routing import RoutingShape, RowsRequest, take_patch
from turnkeeper.testing.engine import unreachable_url
from turnkeeper.testing.script import MoeShape, ScriptedReply, scripted_rows
from turnkeeper.testing.serve import running
from turnkeeper.testing.vllm import ScriptedVllm

URL = "http://vllm"


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    return {"role": "assistant", "content": f"parsed {len(ids)}"}


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


SAMPLING = {"max_tokens": 9, "temperature": 0.5, "seed": 3, "stop": ["x"], "top_p": None}


def test_the_generate_body_asks_for_a_parsed_reply() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    request = make_request(
        sampling={**SAMPLING, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}},
        tools=(tool,),
        template_kwargs={"a": 1},
        stop_token_ids=(2,),
        rows=RowsRequest(start_len=4, held_rows=4),
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
        },
        "stream": False,
        "output_mode": "derender",
        "parse_context": {"tools": [tool], "tool_choice": "auto", "chat_template_kwargs": {"a": 1}},
        "cache_salt": "v",
    }


def test_the_completions_body_asks_for_ids() -> None:
    body = json.loads(render_completions_body(make_request(sampling=SAMPLING), "m"))
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
        "request_id": "rid-1",
    }


def reply(**changes: Any) -> bytes:
    choice = {
        "index": 0,
        "token_ids": [20, 21],
        "logprobs": {"content": [{"token_id": 20, "logprob": -0.5}, {"token_id": 21, "logprob": -0.25}]},
        "finish_reason": "stop",
        "stop_reason": 21,
        "message": {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": []},
        "weight_versions": [{"version": "7", "start": 0, "end": 2}],
    }
    choice = {name: value for name, value in (choice | changes).items() if value != "absent"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    return json.dumps({"request_id": "r", "model": "m", "choices": [choice], "usage": usage}).encode()


def test_a_parsed_reply_is_translated() -> None:
    found = parse_vllm_reply(reply(), make_request(), URL, parse)
    check_generation(found, make_request())
    assert found.message == {"role": "assistant", "content": "", "reasoning_content": "r"}
    assert (found.ids.tolist(), found.logprobs.tolist()) == ([20, 21], [-0.5, -0.25])
    assert (found.finish_reason, found.matched_stop, found.cached_tokens) == ("stop", 21, 4)
    assert (found.weight_version, found.spans) == ("7", (VersionSpan(version="7", start=0, stop=2),))


def test_parsed_calls_end_the_turn_as_calls() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    found = parse_vllm_reply(reply(message={"content": None, "tool_calls": [call]}), make_request(), URL, parse)
    assert found.finish_reason == "tool_calls"


def test_ids_alone_are_read_by_our_parser() -> None:
    assert parse_vllm_reply(reply(message="absent"), make_request(), URL, parse).message["content"] == "parsed 2"


@pytest.mark.parametrize(
    "logprobs",
    [{"content": [{"logprob": -9999.0}, {"logprob": None}]}, {"token_logprobs": [-9999.0, None]}],
    ids=["generate", "completions"],
)
def test_clamped_and_null_logprobs_are_not_finite_again(logprobs: dict[str, Any]) -> None:
    found = parse_vllm_reply(reply(logprobs=logprobs), make_request(), URL, parse)
    assert found.logprobs[0] == -np.inf
    assert np.isnan(found.logprobs[1])
    with pytest.raises(EngineProtocolError, match="-inf"):
        check_generation(found, make_request())


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(reply(token_ids=None), "no token_ids", id="no ids"),
        pytest.param(reply(token_ids=["x"]), "token ids", id="text ids"),
        pytest.param(reply(logprobs=None), "no logprobs", id="no logprobs"),
        pytest.param(b'{"choices": []}', "0 choices", id="no choice"),
        pytest.param(b'{"choices": [1]}', "no object", id="a choice that is none"),
        pytest.param(b"{}", "no choices", id="choices absent"),
    ],
)
def test_what_is_no_reply_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(EngineProtocolError, match=said):
        parse_vllm_reply(raw, make_request(), URL, parse)


def test_a_stream_that_ends_early_or_reports_an_error_is_one() -> None:
    grown = StreamedChoice(URL)
    chunk = {"choices": [{"index": 0, "token_ids": [20], "logprobs": {"content": [{"logprob": -1.0}]}}]}
    assert grown.feed(json.dumps(chunk).encode()).tolist() == [20]
    assert len(grown.feed(b'{"choices": [], "usage": {"prompt_tokens": 5}}')) == 0
    with pytest.raises(EngineError, match="ended before"):
        grown.finish()
    with pytest.raises(EngineError, match="boom"):
        grown.feed(b'{"error": {"message": "boom", "code": 500}}')
    with pytest.raises(EngineProtocolError, match="token ids"):
        grown.feed(b'{"choices": [{"token_ids": ["x"]}]}')


async def test_a_stream_has_the_rows_and_the_counts_of_the_plain_reply(client: EngineClient) -> None:
    asked = RowsRequest(start_len=4, held_rows=4)
    async with running(ScriptedVllm(default=ScriptedReply(ids=range(20, 27)), moe=MoeShape())) as url:
        wire = VllmEngine(url, client, parse)
        plain = await wire.generate(make_request(rows=asked))
        streamed = await wire.generate(make_request(rows=asked), on_ids=lambda ids: None)
    assert streamed.routed_experts == plain.routed_experts
    assert streamed.logprobs.tolist() == plain.logprobs.tolist()
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (5, 7)
    assert streamed.message["content"] == "parsed 7"


@pytest.mark.parametrize("ids", [None, []])
def test_an_abort_before_the_first_token_may_lack_its_lists(ids: object) -> None:
    raw = reply(token_ids=ids, logprobs=None, finish_reason="abort", weight_versions=None, message="absent")
    found = parse_vllm_reply(raw, make_request(), URL, parse)
    assert (found.is_aborted, len(found.ids)) == (True, 0)


async def test_rows_describe_themselves_and_start_where_asked(client: EngineClient) -> None:
    asked = RowsRequest(start_len=4, held_rows=4)
    async with running(ScriptedVllm([ScriptedReply(ids=[20, 21, 2])], moe=MoeShape())) as url:
        found = await VllmEngine(url, client, parse).generate(make_request(rows=asked))
    patch = take_patch(
        found.routed_experts,
        request=asked,
        shape=RoutingShape(layers=2, topk=2, experts=8),
        prompt_tokens=5,
        completion_tokens=3,
    )
    expected = scripted_rows([11, 12, 13, 14, 15, 20, 21, 2], layers=2, topk=2, experts=8)[4:]
    assert np.array_equal(patch.rows.experts_RLK, expected)


async def test_a_server_without_the_generate_route_is_found_out_once(client: EngineClient) -> None:
    engine = ScriptedVllm(default=ScriptedReply(ids=[20, 2]))
    engine.has_generate_route = False
    async with running(engine) as url:
        wire = VllmEngine(url, client, parse)
        replies = [await wire.generate(make_request()) for _ in range(2)]
    assert [found.message["content"] for found in replies] == ["parsed 2"] * 2
    paths = [call.path for call in engine.requests]
    assert paths == ["/inference/v1/generate", "/v1/models", "/v1/completions", "/v1/completions"]


async def test_probes_and_aborts_use_vllms_routes(client: EngineClient) -> None:
    engine = ScriptedVllm()
    async with running(engine) as url:
        wire = VllmEngine(url, client, parse)
        assert [(r.state, r.kind, r.model) for r in await wire.probe()] == [(EngineState.SERVING, "vllm", "scripted")]
        engine.pause("retract")
        assert [r.state for r in await wire.probe()] == [EngineState.PAUSED]
        await wire.abort("r-1")
    assert engine.requests[-1].json == {"request_ids": ["r-1"]}
    with unreachable_url() as url:
        assert [r.state for r in await VllmEngine(url, client, parse).probe()] == [EngineState.UNREACHABLE]
        await VllmEngine(url, client, parse).abort("r-1")
