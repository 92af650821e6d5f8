"""Sampling masks of vLLM, from `/inference/v1/generate` to the samples, through the whole server.

1. Nothing is asked for: its server sends masks with every reply, and logprobs within them, with none over the
   vocabulary beside them. A turn whose sampler does not truncate keeps none; a stream is fetched whole.
2. Parts of an aborted turn are joined with their masks.
3. A reply without masks, with wrong ones, or of the route that has none is a 502 that names the cause.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from httpkit import Site, running_site
from maskkit import MASKS, TRUNCATING, MaskingVllm
from servicekit import user
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import ScriptedReply

VLLM: dict[str, Any] = {"engine": "vllm", **MASKS}
IDS = (73, 74, 181, 2)


async def collect(site: Site, session: str) -> list[Sample]:
    reply = await site.call("POST", f"{session}/samples", {})
    assert reply.status == 200, reply.body
    return list(decode_samples(reply.body).samples)


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_masks_come_without_being_asked_for(version: str, is_streamed: bool) -> None:
    engine = MaskingVllm()
    async with running_site(engine, use_session_server=version, **VLLM) as site:
        session = await site.create()
        messages: list[Any] = [user("a")]
        if is_streamed:
            assert (await site.chat(session, messages, stream=True, **TRUNCATING)).status == 200
        else:
            for text in ("b", "c"):
                reply = await site.chat(session, messages, **TRUNCATING)
                assert reply.status == 200, reply.body
                messages += [reply.json()["choices"][0]["message"], user(text)]
            assert (await site.chat(session, messages, temperature=1.0)).status == 200
        assert [request.path for request in engine.generations] == ["/inference/v1/generate"] * len(engine.generations)
        assert not any(request.json.get("stream") for request in engine.generations)
        assert not any("sampling_mask" in str(request.json) for request in engine.generations)
        (sample,) = await collect(site, session)
        masked = sample.metadata["turnkeeper"]["turns"][:2]
        assert engine.told.check(sample, has_full=False) == sum(turn["end"] - turn["start"] for turn in masked)


async def test_parts_of_an_aborted_turn_are_joined() -> None:
    partial = ScriptedReply(ids=IDS[:3], partial=3, wait=asyncio.Event())
    engine = MaskingVllm(partial, ScriptedReply(text="end"), weight_version="1")
    async with running_site(engine, on_abort="resume", pause_generation_mode="abort", **VLLM) as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")], **TRUNCATING))
        await engine.wait_for_generations(1)
        assert (await site.call("POST", "/engine/pause", {"mode": "abort"})).status == 200
        engine.pause("abort")
        engine.weight_version = "2"
        engine.resume()
        assert (await site.call("POST", "/engine/continue", {})).status == 200
        assert (await turn).status == 200
        assert len(engine.generations) == 2
        (sample,) = await collect(site, session)
        assert engine.told.check(sample, has_full=False) == sample.loss_mask.sum() == sample.response_length


def change(edit: Callable[[list[list[int]]], Any]) -> ScriptedReply:
    """A reply whose masks are changed."""

    def change_masks(reply: JsonObject) -> None:
        choice = reply["choices"][0]
        choice["sampling_mask"] = edit(choice["sampling_mask"])

    return ScriptedReply(ids=IDS, edit=change_masks)


def leave_out(reply: JsonObject) -> None:
    del reply["choices"][0]["sampling_mask"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        pytest.param(change(lambda masks: None), "the reply has none", id="null"),
        pytest.param(ScriptedReply(ids=IDS, edit=leave_out), "the reply has none", id="absent"),
        pytest.param(change(lambda masks: masks[1:]), "4 tokens were sampled, and 3 sampling masks", id="one short"),
        pytest.param(change(lambda masks: [*masks, [5]]), "4 tokens were sampled, and 5 sampling masks", id="one more"),
        pytest.param(change(lambda masks: []), "and 0 sampling masks", id="none of them"),
        pytest.param(change(lambda masks: [*masks[:2], [], masks[3]]), "sampled token 2 is empty", id="an empty one"),
        pytest.param(
            change(lambda masks: [masks[0], [75], *masks[2:]]),
            "sampled token 1 is 74, which its sampling mask does not hold",
            id="without its token",
        ),
        pytest.param(change(lambda masks: [*masks[:3], [2, 10**6]]), "holds 1000000, which is no id", id="stray id"),
        pytest.param(change(lambda masks: [[-1, *masks[0]], *masks[1:]]), "must hold token ids", id="negative id"),
        pytest.param(change(lambda masks: "AAAA"), "must be a list", id="text"),
        pytest.param(change(lambda masks: [*masks[:3], None]), "must be a list", id="no list"),
        pytest.param(change(lambda masks: [73, 74, 181, 2]), "must be a list", id="flat"),
    ],
)
async def test_wrong_masks_are_a_502_that_names_the_cause(reply: ScriptedReply, said: str) -> None:
    async with running_site(MaskingVllm(reply), **VLLM) as site:
        session = await site.create()
        refused = await site.chat(session, [user("a")], **TRUNCATING)
        assert refused.status == 502
        assert said in refused.json()["error"]["message"]
        assert (await site.call("GET", session)).json()["records"] == []
        assert (await site.chat(session, [user("a")], **TRUNCATING)).status == 200


async def test_the_route_without_masks_is_refused_and_named() -> None:
    engine = MaskingVllm()
    engine.has_generate_route = False
    async with running_site(engine, **VLLM) as site:
        session = await site.create()
        refused = await site.chat(session, [user("a")], **TRUNCATING)
        assert refused.status == 502
        assert "the reply has none" in refused.json()["error"]["message"]
        assert "/inference/v1/generate alone" in str(refused.json())


async def test_greedy_turns_have_masks_of_one() -> None:
    greedy = {**TRUNCATING, "top_k": 1}
    engine = MaskingVllm(change(lambda masks: [[token] for token in IDS]), ScriptedReply(ids=IDS))
    async with running_site(engine, **VLLM) as site:
        session = await site.create()
        reply = await site.chat(session, [user("a")], **greedy)
        assert reply.status == 200, reply.body
        (sample,) = await collect(site, session)
        assert sample.tensors["rollout_sampling_mask_ids"].tolist() == list(IDS)
        refused = await site.chat(session, [user("b")], **greedy)
        assert refused.status == 502
        assert "decoding was greedy" in refused.json()["error"]["message"]
