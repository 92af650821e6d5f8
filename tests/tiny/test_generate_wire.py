"""``/generate`` on SGLang's wire.

1. A reply holds text, output_ids and meta_info, whose parts agree in length.
2. Routing rows are base64 of int32 little-endian [rows, layers, top-k] from the start that was asked for; without
   the server's flag they are silently absent.
3. Streamed chunks are cumulative; the last has what the unstreamed reply has; [DONE] ends the stream.
4. Aborts: who runs gives partial tokens and rows, who waits lacks prompt_tokens, cached_tokens and rows. A client
   that hangs up aborts its request.
5. What is missing, malformed or not offered is a 400 that names it, and nothing is queued.
"""

import asyncio
import base64
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tiny.builders import SHAPE, TOKENIZER, WEIGHTS
from tiny.conftest import Serve, Served
from tiny.oracle import naive_forward

PROMPT = [5, 80, 466, 300, 12]


def _rows(meta: dict[str, Any]) -> NDArray[np.int32]:
    return np.frombuffer(base64.b64decode(meta["routed_experts"]), "<i4").reshape(-1, 2, 2)


async def test_a_reply_holds_what_was_sampled(served: Served) -> None:
    reply = await served.generate(PROMPT, rid="mine", sampling_params={"temperature": 0.8})
    meta = reply["meta_info"]
    assert set(reply) == {"text", "output_ids", "meta_info"}
    assert reply["text"] == TOKENIZER.decode(reply["output_ids"])
    assert [token for _, token, text in meta["output_token_logprobs"]] == reply["output_ids"]
    assert all(logprob < 0 and text is None for logprob, _, text in meta["output_token_logprobs"])
    assert meta["e2e_latency"] > 0
    assert {key: meta[key] for key in meta if key not in ("output_token_logprobs", "e2e_latency")} == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 4},
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "cached_tokens": 0,
        "weight_version": "default",
        "weight_versions": [{"version": "default", "start": 0, "end": 4}],
        "num_retractions": 0,
    }


async def test_without_return_logprob_there_are_none(served: Served) -> None:
    reply = await served.generate(PROMPT, return_logprob=False, top_logprobs_num=3)
    assert not {"output_token_logprobs", "output_top_logprobs"} & set(reply["meta_info"])


async def test_runners_up_come_when_they_are_asked_for(served: Served) -> None:
    meta = (await served.generate(PROMPT, top_logprobs_num=2, sampling_params={"temperature": 0}))["meta_info"]
    for (logprob, token, _), top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert len(top) == 2
        assert top[0][:2] == [logprob, token]


async def test_text_is_a_prompt_too(served: Served) -> None:
    text = "What is 2 + 2?"
    reply = await served.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 1}})
    assert reply.json()["meta_info"]["prompt_tokens"] == len(TOKENIZER.encode(text).ids)


@pytest.mark.parametrize("start", [0, 2, 5])
async def test_rows_begin_where_they_were_asked_from(served: Served, start: int) -> None:
    reply = await served.generate(PROMPT, return_routed_experts=True, routed_experts_start_len=start)
    _, experts = naive_forward(
        SHAPE,
        {n: w.astype(np.float16).astype(np.float32) for n, w in WEIGHTS[0].items()},
        [*PROMPT, *reply["output_ids"]],
    )
    np.testing.assert_array_equal(_rows(reply["meta_info"]), experts[start:-1])


async def test_zero_rows_are_the_empty_string(served: Served) -> None:
    reply = await served.generate(PROMPT, count=1, return_routed_experts=True, routed_experts_start_len=5)
    assert reply["meta_info"]["routed_experts"] == ""


async def test_without_the_servers_flag_rows_are_silently_absent(serve: Serve) -> None:
    async with serve(has_routed_experts=False) as served:
        reply = await served.generate(PROMPT, return_routed_experts=True)
        assert "routed_experts" not in reply["meta_info"]
        assert (await served.client.get("/server_info")).json()["enable_return_routed_experts"] is False


async def test_streamed_chunks_are_cumulative(served: Served) -> None:
    whole = await served.generate(PROMPT, count=20, return_routed_experts=True, sampling_params={"sampling_seed": 3})
    sampling = {"max_new_tokens": 20, "ignore_eos": True, "sampling_seed": 3}
    async with served.in_flight(input_ids=PROMPT, sampling_params=sampling, return_routed_experts=True) as flight:
        chunks = [flight.first]
        while (chunk := await flight.next_chunk()) is not None:
            chunks.append(chunk)
    for before, after in pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
        assert len(before["meta_info"]["output_token_logprobs"]) == before["meta_info"]["completion_tokens"]
    last = chunks[-1]
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    np.testing.assert_array_equal(_rows(last["meta_info"]), _rows(whole["meta_info"]))
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 20}


async def test_an_abort_of_a_running_request_gives_what_it_has(served: Served) -> None:
    async with served.in_flight(return_routed_experts=True) as flight:
        assert (await served.post("/abort_request", {"rid": "long"})).status_code == 200
        last = await flight.last_chunk()
    meta = last["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"
    count = meta["completion_tokens"]
    assert 0 < count == len(last["output_ids"]) == len(meta["output_token_logprobs"])
    assert len(_rows(meta)) == 3 + count - 1


async def test_an_abort_of_a_waiting_request_lacks_what_it_never_had(serve: Serve) -> None:
    async with serve(max_batch=1) as served, served.in_flight():
        waiting = asyncio.create_task(served.generate(PROMPT, rid="waits", return_routed_experts=True))
        await served.wait_for(1, 1)
        await served.post("/abort_request", {"rid": "waits"})
        meta = (await waiting)["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert (meta["completion_tokens"], meta["output_token_logprobs"]) == (0, [])
        assert not {"prompt_tokens", "cached_tokens", "routed_experts"} & set(meta)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_hangs_up_aborts_its_request(served: Served, is_streamed: bool) -> None:
    if is_streamed:
        async with served.in_flight():
            assert await served.count_requests() == (1, 0)
    else:
        call = asyncio.create_task(served.generate(PROMPT, count=60_000))
        await served.wait_for(1, 0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await served.wait_until_idle()


async def test_a_rid_in_use_is_refused(served: Served) -> None:
    async with served.in_flight("twice"):
        reply = await served.post("/generate", {"input_ids": [1], "rid": "twice"})
        assert reply.status_code == 400
        assert "twice" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"input_ids": None}, "input_ids", id="no prompt"),
        pytest.param({"input_ids": []}, "input_ids", id="an empty prompt"),
        pytest.param({"input_ids": [[1, 2]]}, "input_ids", id="a batch"),
        pytest.param({"input_ids": "1 2"}, "input_ids", id="a string"),
        pytest.param({"input_ids": [1, True]}, "input_ids", id="a boolean among ids"),
        pytest.param({"input_ids": [1, 2.5]}, "input_ids", id="a fraction among ids"),
        pytest.param({"input_ids": [1, 99999]}, "99999", id="beyond the vocabulary"),
        pytest.param({"input_ids": [-1]}, "-1", id="a negative id"),
        pytest.param({"input_ids": [1] * 65_536}, "65536", id="a prompt as long as the context"),
        pytest.param({"sampling_params": {"max_new_tokens": 65_536}}, "65536", id="more tokens than the context"),
        pytest.param({"sampling_params": []}, "sampling_params", id="sampling that is no object"),
        pytest.param({"sampling_params": {"temperature": "hot"}}, "temperature", id="a temperature in words"),
        pytest.param({"sampling_params": {"temperature": -1}}, "temperature", id="a negative temperature"),
        pytest.param({"sampling_params": {"max_new_tokens": 1.5}}, "max_new_tokens", id="half a token"),
        pytest.param({"sampling_params": {"stop": [1]}}, "stop", id="a stop that is no text"),
        pytest.param({"sampling_params": {"stop_token_ids": [768]}}, "stop_token_ids", id="a stop id beyond"),
        pytest.param({"sampling_params": {"logit_bias": {"x": 1}}}, "logit_bias", id="a bias without an id"),
        pytest.param({"sampling_params": {"logit_bias": {"9999": 1}}}, "logit_bias", id="a bias beyond"),
        pytest.param({"sampling_params": {"json_schema": "{}"}}, "json_schema", id="a grammar"),
        pytest.param({"sampling_params": {"n": 2}}, "n=2", id="two completions"),
        pytest.param({"routed_experts_start_len": 6}, "routed_experts_start_len", id="rows after the prompt"),
        pytest.param({"routed_experts_start_len": -1}, "routed_experts_start_len", id="rows before it"),
        pytest.param({"stream": "yes"}, "stream", id="a stream in words"),
        pytest.param({"rid": 7}, "rid", id="a rid that is no string"),
    ],
)
async def test_what_cannot_be_served_is_a_400_that_names_it(served: Served, change: dict[str, Any], named: str) -> None:
    reply = await served.post("/generate", {"input_ids": PROMPT, **change})
    assert reply.status_code == 400
    assert named in reply.json()["error"]["message"]
    assert await served.count_requests() == (0, 0)


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b"\xff", b'{"input_ids": NaN}'])
async def test_a_body_that_is_no_object_is_a_400(served: Served, body: bytes) -> None:
    reply = await served.client.post("/generate", content=body)
    assert reply.status_code == 400
    assert "body" in reply.json()["error"]["message"]
