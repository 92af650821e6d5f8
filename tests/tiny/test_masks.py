"""Sampling masks: what each token was drawn from.

1. A mask holds what top-k, top-p and min-p leave in, most probable first, the token among it; the sampling logprob is
   the token's within it. An oracle in plain Python says both.
2. Greedy sampling has the token alone. A request draws and reports the same whether or not it asks for masks.
3. On the wire: parallel to the output ids, on both routes; a stream repeats all so far; nothing unless asked for.
4. A sampler that leaves nothing out, a chat without meta_info and logprobs of whole masks are a 400.
5. An abort gives the masks of the partial output, and none to who waits; a retraction keeps the masks of the tokens
   that were sampled before it, and so does in_place.
6. A traced request is replayed from its experts and masks together, in every pause mode; the full logprobs too.
"""

import asyncio
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny.builders import MODELS, Bench
from tiny.conftest import Serve, Served
from turnkeeper.choices import PauseMode
from turnkeeper.tiny.scheduler import Result, Sampler, SamplingParams, sample
from turnkeeper.tiny.scheduler.trace import build_line, replay

PROMPT = [5, 80, 466, 300, 12]
LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 3.0, 2.5, -4.0], np.float32)
TRUNCATING = [
    pytest.param({"top_k": 3}, id="top-k"),
    pytest.param({"top_k": 1}, id="top-k of one"),
    pytest.param({"top_k": 99}, id="a top-k beyond the vocabulary"),
    pytest.param({"top_p": 0.8}, id="top-p"),
    pytest.param({"min_p": 0.2}, id="min-p"),
    pytest.param({"temperature": 1.7, "top_k": 6, "top_p": 0.95, "min_p": 0.15}, id="all, hot"),
    pytest.param({"top_p": 0.9, "logit_bias": {7: 9.0}, "frequency_penalty": 0.5}, id="weights changed before"),
]


def _keep(logits: list[float], *, temperature: float = 1.0, **cuts: Any) -> list[int]:
    """What a truncation leaves in of a row, most probable first."""
    powers = [math.exp(x / temperature) for x in logits]
    share = [power / sum(powers) for power in powers]
    ranked = sorted(range(len(share)), key=lambda i: -share[i])
    kept, total = [], 0.0
    for rank, i in enumerate(ranked):
        within = total <= cuts.get("top_p", 1.0) and share[i] >= share[ranked[0]] * cuts.get("min_p", 0.0)
        if within and rank < cuts.get("top_k", len(share)):
            kept.append(i)
        total += share[i]
    return kept


@pytest.mark.parametrize("params", TRUNCATING)
def test_a_mask_is_what_the_truncation_leaves_in(params: dict[str, Any]) -> None:
    row = LOGITS.tolist()
    for token, bias in params.get("logit_bias", {}).items():
        row[token] += bias
    temperature = params.get("temperature", 1.0)
    expected = _keep(row, **{name: value for name, value in params.items() if name != "logit_bias"})
    for seed in range(30):
        sampler = Sampler(SamplingParams(seed=seed, **params), fallback_seed=(1,), stop_ids=[], keeps_masks=True)
        (drawn,) = sample(LOGITS[None], [sampler])
        assert drawn.mask is not None
        assert list(drawn.mask.ids) == expected
        assert drawn.token_id in expected
        whole = math.log(sum(math.exp(row[i] / temperature) for i in expected))
        assert drawn.mask.logprob == pytest.approx(row[drawn.token_id] / temperature - whole, abs=1e-6)


def test_only_who_asks_gets_masks_and_draws_the_same() -> None:
    def draw(keeps: tuple[bool, bool]) -> list[Any]:
        samplers = [
            Sampler(SamplingParams(seed=i, top_p=0.8), fallback_seed=(1,), stop_ids=[], keeps_masks=keeps[i])
            for i in range(2)
        ]
        return [drawn for _ in range(20) for drawn in sample(np.tile(LOGITS, (2, 1)), samplers)]

    asked, unasked = draw((True, False)), draw((False, False))
    assert [(a.token_id, a.logprob) for a in asked] == [(b.token_id, b.logprob) for b in unasked]
    assert [a.mask is not None for a in asked] == [True, False] * 20


@pytest.mark.parametrize("params", [{}, {"top_p": 0.8, "top_k": 5}])
def test_greedy_sampling_has_the_token_alone(params: dict[str, Any]) -> None:
    sampler = Sampler(SamplingParams(temperature=0, **params), fallback_seed=(1,), stop_ids=[], keeps_masks=True)
    (drawn,) = sample(LOGITS[None], [sampler])
    assert drawn.mask is not None
    assert (drawn.mask.ids, drawn.mask.logprob) == ((5,), 0.0)
    assert drawn.logprob < 0, "the full logprob is that at temperature 1"


SAMPLING = {"temperature": 1.5, "top_p": 0.9, "sampling_seed": 3}


def _check_parallel(ids: list[int], meta: dict[str, Any]) -> None:
    masks, logprobs = meta["output_token_sampling_mask"], meta["output_token_sampling_logprobs"]
    assert len(masks) == len(logprobs) == len(ids) == meta["output_token_sampling_mask_length"]
    for token, mask, logprob in zip(ids, masks, logprobs, strict=True):
        assert token in mask
        assert len(set(mask)) == len(mask)
        assert logprob <= 0


async def test_masks_are_parallel_to_the_output(served: Served) -> None:
    asked = {"count": 12, "sampling_params": SAMPLING}
    plain = await served.generate(PROMPT, cache_salt="a", **asked)
    reply = await served.generate(PROMPT, cache_salt="b", return_sampling_mask=True, **asked)
    meta = reply["meta_info"]
    _check_parallel(reply["output_ids"], meta)
    assert max(map(len, meta["output_token_sampling_mask"])) > 1
    assert not [name for name in plain["meta_info"] if "sampling" in name]
    assert plain["meta_info"]["output_token_logprobs"] == meta["output_token_logprobs"]


async def test_masks_need_no_logprobs(served: Served) -> None:
    reply = await served.generate(PROMPT, sampling_params=SAMPLING, return_sampling_mask=True, return_logprob=False)
    _check_parallel(reply["output_ids"], reply["meta_info"])
    assert "output_token_logprobs" not in reply["meta_info"]


async def test_chat_has_them_with_meta_info(served: Served) -> None:
    fields = {"temperature": 1.5, "top_k": 20, "return_sampling_mask": True, "logprobs": True}
    reply = await served.chat(**fields, return_meta_info=True)
    meta = reply["choices"][0]["meta_info"]
    _check_parallel([token for _, token, _ in meta["output_token_logprobs"]], meta)
    assert {len(mask) for mask in meta["output_token_sampling_mask"]} == {20}


async def test_a_stream_repeats_all_masks_so_far(served: Served) -> None:
    asked = {"return_sampling_mask": True, "sampling_logprobs_mode": "selected"}
    whole = await served.generate(PROMPT, count=20, sampling_params=SAMPLING, cache_salt="other", **asked)
    sampling = {"max_new_tokens": 20, "ignore_eos": True, **SAMPLING}
    async with served.in_flight(input_ids=PROMPT, sampling_params=sampling, **asked) as flight:
        chunks = [flight.first]
        while (chunk := await flight.next_chunk()) is not None:
            chunks.append(chunk)
    for before, after in pairwise(chunks):
        masks = before["meta_info"]["output_token_sampling_mask"]
        _check_parallel(before["output_ids"], before["meta_info"])
        assert after["meta_info"]["output_token_sampling_mask"][: len(masks)] == masks
    for name in ("output_token_sampling_mask", "output_token_sampling_logprobs"):
        assert chunks[-1]["meta_info"][name] == whole["meta_info"][name]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        pytest.param({"return_sampling_mask": True}, "whole vocabulary", id="a sampler that leaves nothing out"),
        pytest.param({"return_sampling_mask": 1}, "return_sampling_mask", id="no boolean"),
        pytest.param({"sampling_logprobs_mode": "selected"}, "sampling_logprobs_mode", id="a mode without masks"),
        pytest.param(
            {"return_sampling_mask": True, "top_p": 0.9, "sampling_logprobs_mode": "support"},
            "support",
            id="logprobs of whole masks",
        ),
    ],
)
async def test_what_cannot_be_given_is_a_400(served: Served, fields: dict[str, Any], named: str) -> None:
    sampling = {"top_p": fields.get("top_p", 1.0)}
    generate = await served.post("/generate", {"input_ids": PROMPT, "sampling_params": sampling, **fields})
    assert generate.status_code == 400
    assert named in generate.json()["error"]["message"]
    chat = {"messages": [{"role": "user", "content": "hi"}], "return_meta_info": True, **fields}
    reply = await served.post("/v1/chat/completions", chat)
    assert reply.status_code == 400
    assert named in reply.json()["message"]
    assert await served.count_requests() == (0, 0)


async def test_chat_without_meta_info_is_a_400(served: Served) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "top_k": 5, "return_sampling_mask": True}
    reply = await served.post("/v1/chat/completions", chat)
    assert (reply.status_code, reply.json()["param"]) == (400, "return_sampling_mask")


async def test_who_is_aborted_while_it_waits_has_none(serve: Serve) -> None:
    async with serve(max_batch=1) as served, served.in_flight():
        asked = {"sampling_params": {"top_k": 5}, "return_sampling_mask": True}
        waiting = asyncio.create_task(served.generate(PROMPT, rid="waits", **asked))
        await served.wait_for(1, 1)
        await served.post("/abort_request", {"rid": "waits"})
        assert not [name for name in (await waiting)["meta_info"] if "sampling" in name]


async def test_who_is_aborted_after_a_retraction_keeps_tokens_without_masks(served: Served) -> None:
    """As in SGLang, whose reply to an abort in the queue has what was reported before, and no masks."""
    sampling = {"max_new_tokens": 60_000, "ignore_eos": True, "top_k": 5}
    async with served.in_flight(sampling_params=sampling, return_sampling_mask=True) as flight:
        await served.post("/pause_generation", {"mode": "retract"})
        await served.post("/abort_request", {"rid": "long"})
        last = await flight.last_chunk()
    assert len(last["output_ids"]) == len(last["meta_info"]["output_token_logprobs"]) > 0
    assert not [name for name in last["meta_info"] if "sampling" in name]


async def test_a_trace_tells_masks_and_the_reply_does_not(serve: Serve, tmp_path: Path) -> None:
    async with serve(kv_trace=tmp_path / "trace.jsonl") as served:
        replies = [await served.generate(PROMPT, sampling_params=params) for params in (SAMPLING, {})]
    truncated, whole = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert not [name for reply in replies for name in reply["meta_info"] if "sampling" in name]
    assert len(truncated["sampling_masks"]) == len(truncated["sampling_logprobs"]) == 4
    assert (whole["sampling_masks"], whole["sampling_logprobs"]) == (None, None)


def _masks(result: Result) -> list[tuple[tuple[int, ...], float]]:
    return [(mask.ids, mask.logprob) for mask in result.tokens.masks]


def test_an_abort_gives_the_masks_of_the_partial_output() -> None:
    bench = Bench()
    heard = bench.ask(PROMPT, has_masks=True, seed=1, top_p=0.9)
    bench.step(3)
    bench.scheduler.pause(PauseMode.ABORT)
    undisturbed = Bench().run(PROMPT, has_masks=True, seed=1, top_p=0.9)
    assert _masks(heard.result) == _masks(undisturbed)[:3]


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
@pytest.mark.parametrize("stream", [False, True])
def test_masks_stay_those_at_which_their_tokens_were_sampled(mode: PauseMode, stream: bool) -> None:
    bench = Bench()
    heard = bench.ask(PROMPT, has_masks=True, seed=1, top_p=0.9, stream=stream)
    bench.step(4)
    bench.scheduler.pause(mode)
    bench.update()
    bench.scheduler.resume()
    bench.finish()
    undisturbed = Bench().run(PROMPT, has_masks=True, seed=1, top_p=0.9)
    assert len(_masks(heard.result)) == 8
    assert _masks(heard.result)[:4] == _masks(undisturbed)[:4]
    assert _masks(heard.result)[4:] != _masks(undisturbed)[4:]
    told = [mask for delta in heard.deltas for mask in delta.tokens.masks]
    assert (*told, *heard.result.rest_tokens.masks) == heard.result.tokens.masks


@pytest.mark.parametrize("mode", [None, *PauseMode])
@pytest.mark.parametrize(
    "params", [{"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.7, "top_k": 9, "min_p": 0.02}]
)
def test_experts_and_masks_reproduce_each_sampling_logprob(mode: PauseMode | None, params: dict[str, Any]) -> None:
    bench = Bench(prefill_tokens=4, max_batch=3)
    bench.run([*PROMPT[:3], 7], **params)
    heard = [bench.ask([*PROMPT, i], max_new_tokens=12, **params) for i in range(5)]
    bench.step(7)
    if mode is not None:
        bench.scheduler.pause(mode)
    bench.update()
    if mode is not None:
        bench.scheduler.resume()
    bench.finish()
    assert len(bench.traced) == 1 + len(heard)
    checked, off = 0, 0.0
    for live, result, stamps in bench.traced:
        line = json.loads(json.dumps(build_line(live, result, stamps)))
        if line["epochs"]:
            found = replay(line, {0: MODELS[0], 1: MODELS[1]})
            assert found.sampling_logprobs is not None
            np.testing.assert_allclose(found.sampling_logprobs, line["sampling_logprobs"], atol=1e-4)
            np.testing.assert_allclose(found.logprobs, line["logprobs"], atol=1e-4)
            checked += len(found.sampling_logprobs)
            off = max(off, np.abs(found.logprobs - line["sampling_logprobs"]).max())
    assert checked == sum(len(result.tokens.ids) for _, result, _ in bench.traced)
    assert off > 0.05, "logprobs of the whole vocabulary are not those of the truncated distribution"
