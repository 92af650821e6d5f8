"""Sampling masks of turns that were aborted and resumed, sampled again or branched, in both histories.

The oracle is what the engine said of each token of each of its replies; see `maskkit`.

1. A turn of several engine calls has the masks of all of them; what lies between turns has none.
2. Of a turn that was sampled again, and of two that branch, each sample has the masks of its own path.
3. Partial tokens that come without their masks, as SGLang sends them of a request that an abort finds waiting behind a
   retraction, or with too few, are sampled again, and never put beside other masks; a log line says why.
"""

import asyncio
import json
import logging
from typing import Any

import pytest

from httpkit import Site, running_site
from maskkit import LISTS, LOGPROBS, MASKS, TRUNCATING, WITHOUT_MASKS, MaskingEngine
from servicekit import user
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import ScriptedReply

FIRST, SECOND, THIRD = (73, 74, 181, 262), (255, 231, 96), (97, 98, 22)
BOTH = pytest.mark.parametrize("version", ["v1", "v2"])
WIRES = pytest.mark.parametrize("wire", ["chat", "generate"])


def build_partial(*ids: int, **fields: Any) -> ScriptedReply:
    """A reply that does not come; an abort finds these ids sampled."""
    return ScriptedReply(ids=ids, partial=len(ids), wait=asyncio.Event(), **fields)


async def collect(site: Site, session: str, **body: Any) -> list[Sample]:
    reply = await site.call("POST", f"{session}/samples", body)
    assert reply.status == 200, reply.body
    return list(decode_samples(reply.body).samples)


async def say(site: Site, session: str, messages: list[Any], **fields: Any) -> Any:
    reply = await site.chat(session, messages, **{**TRUNCATING, **fields})
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["message"]


async def say_through_updates(site: Site, engine: MaskingEngine, session: str, messages: list[Any], aborts: int) -> Any:
    """A turn that so many weight updates abort."""
    before = len(engine.generations)
    turn = asyncio.create_task(say(site, session, messages, max_tokens=40))
    for number in range(1, aborts + 1):
        await engine.wait_for_generations(before + number)
        assert (await site.call("POST", "/engine/pause", {"mode": "abort", "forward": True})).status == 200
        engine.weight_version = str(int(engine.weight_version) + 1)
        assert (await site.call("POST", "/engine/continue", {"forward": True})).status == 200
    return await turn


@BOTH
@WIRES
async def test_resumed_turns_keep_the_masks_of_all_their_parts(version: str, wire: str) -> None:
    engine = MaskingEngine(weight_version="1")
    options = {"use_session_server": version, "engine_wire": wire, "on_abort": "resume", **MASKS}
    async with running_site(engine, pause_generation_mode="abort", **options) as site:
        session = await site.create()
        engine.script = [build_partial(*FIRST), build_partial(*SECOND), ScriptedReply(ids=THIRD, finish_reason="stop")]
        messages = [user("a")]
        messages += [await say_through_updates(site, engine, session, messages, 2), user("b")]
        messages += [await say(site, session, messages, top_p=1.0, top_k=-1), user("c")]
        engine.script = [build_partial(*THIRD), ScriptedReply(text="end")]
        messages += [await say_through_updates(site, engine, session, messages, 1), user("d")]
        await say(site, session, messages)
        (sample,) = await collect(site, session)
        assert len(engine.generations) == 7
        plain = sample.metadata["turnkeeper"]["turns"][1]
        masks = engine.told.check(sample)
        assert masks == sample.loss_mask.sum() - (plain["end"] - plain["start"])
        for budget in range(len(sample.tokens) - sample.response_length + 1, len(sample.tokens), 5):
            for cut in await collect(site, session, max_seq_len=budget):
                engine.told.check(cut)


@BOTH
@WIRES
async def test_each_sample_has_the_masks_of_its_own_path(version: str, wire: str) -> None:
    engine = MaskingEngine(weight_version="1")
    options = {"use_session_server": version, "engine_wire": wire, "on_abort": "resume", **MASKS}
    async with running_site(engine, pause_generation_mode="abort", **options) as site:
        session = await site.create()
        first = await say(site, session, [user("a")])
        again = [user("a"), first, user("b")]
        await say(site, session, again)
        engine.script = [build_partial(*FIRST), ScriptedReply(text="second try")]
        second = await say_through_updates(site, engine, session, again, 1)
        await say(site, session, [*again, second, user("c")])
        samples = await collect(site, session)
        if version == "v2":
            await say(site, session, [user("a"), first, user("another")])
            samples = await collect(site, session)
            assert len(samples) == 2
        masks = [engine.told.check(sample) for sample in samples]
        # Tokens that two samples share train in one of them, and have their masks in both.
        assert all(masks)
        assert sum(masks) >= sum(int(sample.loss_mask.sum()) for sample in samples)


@BOTH
@WIRES
@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (WITHOUT_MASKS, "the reply has none"),
        ({LISTS: [[73], [74]]}, "4 tokens were sampled, and 2 sampling masks came"),
        ({LOGPROBS: [-0.5, -0.5]}, "output_token_sampling_logprobs has 2"),
    ],
    ids=["waiting behind a retraction", "fewer masks", "fewer logprobs"],
)
async def test_partial_tokens_without_their_masks_are_sampled_again(
    version: str, wire: str, meta: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "turnkeeper.engines")

    def edit(reply: dict[str, Any]) -> None:
        told = reply["meta_info"] if "meta_info" in reply else reply["choices"][0]["meta_info"]
        told |= {name: value for name, value in meta.items() if value is not None}

    engine = MaskingEngine(
        build_partial(*FIRST, meta={name: value for name, value in meta.items() if value is None}, edit=edit),
        build_partial(*SECOND),
        ScriptedReply(text="whole"),
        weight_version="1",
    )
    options = {"use_session_server": version, "engine_wire": wire, "on_abort": "resume", **MASKS}
    async with running_site(engine, pause_generation_mode="abort", **options) as site:
        session = await site.create()
        await say_through_updates(site, engine, session, [user("a")], 2)
        first, second, third = (request.json["input_ids"] for request in engine.generations)
        assert (second, third) == (first, [*first, *SECOND])
        again, resumed = (line for line in map(str, caplog.messages) if line.startswith("call_aborted"))
        assert "action=restart" in again
        assert said in again
        assert "action=resume" in resumed
        assert "obstacle" not in resumed
        (sample,) = await collect(site, session)
        assert engine.told.check(sample) == sample.loss_mask.sum() == sample.response_length
        shown = (await site.call("GET", session)).json()
        assert shown["metadata"]["turnkeeper"]["accounting"]["dropped"] == {"aborted_piece": len(FIRST)}


@BOTH
async def test_whole_tokens_without_their_masks_are_refused(version: str) -> None:
    """As above, on a turn that ends instead of being aborted: nothing is recorded, and the next turn is whole."""
    engine = MaskingEngine(build_partial(*FIRST), ScriptedReply(ids=SECOND, meta=WITHOUT_MASKS), weight_version="1")
    options = {"use_session_server": version, "on_abort": "resume", **MASKS}
    async with running_site(engine, pause_generation_mode="abort", **options) as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")], **TRUNCATING))
        await engine.wait_for_generations(1)
        await site.call("POST", "/engine/pause", {"mode": "abort", "forward": True})
        engine.weight_version = "2"
        await site.call("POST", "/engine/continue", {"forward": True})
        refused = await turn
        assert (refused.status, len(engine.generations)) == (502, 2)
        assert "the reply has none" in json.loads(refused.body)["error"]["message"]
        await say(site, session, [user("a")])
        (sample,) = await collect(site, session)
        assert engine.told.check(sample) == sample.loss_mask.sum()
