"""Sampling masks from the engine's wire to the samples, through the whole server.

1. They are asked for on turns whose sampler truncates and on no other, on either wire of SGLang; streams are fetched
   whole for them.
2. A reply without masks, or with wrong ones, is a 502 that names the cause, and nothing is recorded.
3. What no mask explains is marked, and kept, masked or refused.
4. With routing rows, in every pause mode and history, samples of the embedded engine hold the masks that it reports.
5. A trainer's own name for the option turns it on.
"""

from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest

from httpkit import Site, running_site, serving
from servicekit import get_renderer, user
from turnkeeper.choices import PauseMode
from turnkeeper.config.namespace import options_from_namespace
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import ScriptedEngine, ScriptedReply, running
from turnkeeper.testing.script import scripted_mask
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.server import build_app

MASKS: dict[str, Any] = {"use_rollout_sampling_mask": True, "tito_model": "qwen3"}
TRUNCATING = {"temperature": 0.7, "top_p": 0.9}
LISTS = "output_token_sampling_mask"


def build_engine(*script: ScriptedReply) -> ScriptedEngine:
    encode = get_renderer().tokenizer.encode
    return ScriptedEngine(script, encode=lambda text: encode(text).tolist())


async def collect(site: Site, session: str) -> list[Sample]:
    reply = await site.call("POST", f"{session}/samples", {})
    assert reply.status == 200, reply.body
    return list(decode_samples(reply.body).samples)


def list_masks(sample: Sample) -> list[list[int]]:
    ids, offsets = sample.rollout_sampling_mask_ids, sample.rollout_sampling_mask_offsets
    assert ids is not None
    assert offsets is not None
    return [each.tolist() for each in np.split(ids, offsets[1:-1])]


@pytest.mark.parametrize("wire", ["chat", "generate"])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_masks_are_asked_for_where_the_sampler_truncates(wire: str, version: str) -> None:
    engine = build_engine()
    async with running_site(engine, use_session_server=version, engine_wire=wire, **MASKS) as site:
        session = await site.create()
        first = (await site.chat(session, [user("a")], **TRUNCATING)).json()["choices"][0]["message"]
        second = await site.chat(session, [user("a"), first, user("b")], temperature=1.0)
        assert second.status == 200
        asked = [request.json.get("return_sampling_mask") for request in engine.generations]
        assert asked == [True, None]
        (sample,) = await collect(site, session)
        turns = sample.metadata["turnkeeper"]["turns"]
        response = sample.tokens[len(sample.tokens) - sample.response_length :].tolist()
        drawn = range(turns[0]["start"], turns[0]["end"])
        expected = [scripted_mask(token) if at in drawn else [] for at, token in enumerate(response)]
        assert list_masks(sample) == expected
        full, temperatures = sample.rollout_full_log_probs, sample.rollout_temperatures
        assert full is not None
        assert temperatures is not None
        halves = [full[at] / 2 if at in drawn else full[at] for at in range(len(response))]
        assert sample.rollout_log_probs.tolist() == halves
        last = range(turns[1]["start"], turns[1]["end"])
        given = [0.7 if at in drawn else 1.0 if at in last else 0.0 for at in range(len(response))]
        assert temperatures.tolist() == given
        record = (await site.call("GET", f"{session}?rows=1")).json()["records"][0]
        assert record["request"]["return_sampling_mask"] is True
        shown = record["response"]["choices"][0]["meta_info"]
        assert shown[LISTS] == expected[: len(drawn)]


async def test_nothing_is_asked_for_without_the_option_or_in_an_evaluation() -> None:
    for options, body in (({"tito_model": "qwen3"}, {}), (MASKS, {"evaluation": True})):
        engine = build_engine()
        async with running_site(engine, **options) as site:
            session = await site.create(**body)
            assert (await site.chat(session, [user("a")], **TRUNCATING)).status == 200
            assert "return_sampling_mask" not in engine.generations[0].json
            (sample,) = await collect(site, session)
            assert (sample.rollout_sampling_mask_ids, sample.tensors) == (None, {})


async def test_a_stream_is_fetched_whole() -> None:
    engine = build_engine()
    async with running_site(engine, engine_wire="generate", on_abort="resume", **MASKS) as site:
        session = await site.create()
        streamed = await site.chat(session, [user("a")], stream=True, **TRUNCATING)
        assert streamed.status == 200
        assert engine.generations[0].json["stream"] is False
        (sample,) = await collect(site, session)
        assert all(list_masks(sample))


def edit_masks(change: Any) -> ScriptedReply:
    def edit(reply: dict[str, Any]) -> None:
        meta = reply["choices"][0]["meta_info"]
        meta[LISTS] = change(meta[LISTS])

    return ScriptedReply(edit=edit)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        pytest.param(ScriptedReply(meta={LISTS: None}), "the reply has none", id="missing"),
        pytest.param(ScriptedReply(meta={LISTS: "AA=="}), "must be a list", id="text"),
        pytest.param(edit_masks(lambda masks: masks[1:]), "sampling masks came", id="one short"),
        pytest.param(edit_masks(lambda masks: [[], *masks[1:]]), "sampled token 0 is empty", id="an empty one"),
        pytest.param(edit_masks(lambda masks: [[5], *masks[1:]]), "does not hold", id="without the token"),
        pytest.param(edit_masks(lambda masks: [[*masks[0], 10**6], *masks[1:]]), "no id of the model", id="stray id"),
        pytest.param(ScriptedReply(meta={f"{LISTS}_truncated": True}), "cut the sampling mask", id="cut short"),
        pytest.param(ScriptedReply(meta={"output_token_sampling_logprobs": None}), "has 0", id="no logprobs"),
    ],
)
async def test_wrong_masks_are_a_502_that_names_the_cause(reply: ScriptedReply, said: str) -> None:
    async with running_site(build_engine(reply), **MASKS) as site:
        session = await site.create()
        refused = await site.chat(session, [user("a")], **TRUNCATING)
        assert refused.status == 502
        assert said in refused.json()["error"]["message"]
        assert (await site.call("GET", session)).json()["records"] == []


@pytest.mark.parametrize("choice", ["keep", "mask", "refuse"])
async def test_what_no_mask_explains_is_kept_masked_or_refused(choice: str) -> None:
    engine = build_engine()
    async with running_site(engine, on_not_replayable=choice, **MASKS) as site:
        session = await site.create()
        reply = await site.chat(session, [user("a")], presence_penalty=0.5, **TRUNCATING)
        if choice == "refuse":
            assert (reply.status, engine.generations) == (400, [])
            assert "presence_penalty" in reply.json()["error"]["message"]
            return
        (sample,) = await collect(site, session)
        (turn,) = sample.metadata["turnkeeper"]["turns"]
        assert turn["marks"]["not_replayable"] == ["presence_penalty"]
        assert sample.loss_mask.any() == (choice == "keep")
        reasons = [each["reason"] for each in sample.metadata["turnkeeper"]["masked"]]
        assert reasons == ([] if choice == "keep" else ["not_replayable"])
        assert all(list_masks(sample))


@pytest.mark.parametrize("mode", list(PauseMode))
@pytest.mark.parametrize("wire", ["chat", "generate"])
async def test_the_embedded_engine_gives_rows_and_masks_together(mode: PauseMode, wire: str) -> None:
    engine = TinyEngine(EngineOptions(checkpoint=shipped_checkpoint()))
    options = {"use_rollout_routing_replay": True, "num_layers": 4, "moe_router_topk": 2, "num_experts": 8}
    options |= {"use_rollout_sampling_mask": True, "engine_wire": wire, "pause_generation_mode": mode}
    async with running(build_app(engine)) as engine_url, serving(engine_url, **options) as (url, parts):  # noqa: SIM117
        async with aiohttp.ClientSession() as http:
            site = Site(url=url, engine_url=engine_url, engine=ScriptedEngine(), parts=parts, http=http)
            session = await site.create()
            messages: list[dict[str, Any]] = []
            for number, text in enumerate(("What is 2 + 3?", "Thanks.")):
                messages.append(user(text))
                reply = await site.chat(session, messages, temperature=1.0, top_p=0.9, top_k=30, seed=number)
                assert reply.status == 200, reply.body
                messages.append(reply.json()["choices"][0]["message"])
            for sample in await collect(site, session):
                assert sample.rollout_routed_experts is not None
                assert len(sample.rollout_routed_experts) == len(sample.tokens) - 1
                response = sample.tokens[len(sample.tokens) - sample.response_length :].tolist()
                full = sample.rollout_full_log_probs
                assert full is not None
                for at, mask in enumerate(list_masks(sample)):
                    assert bool(mask) == bool(sample.loss_mask[at])
                    assert not mask or (response[at] in mask and len(mask) <= 30)
                    assert not mask or sample.rollout_log_probs[at] >= full[at] - 1e-6
                    assert len(mask) != 1 or abs(sample.rollout_log_probs[at]) < 1e-6


def test_a_trainers_own_name_turns_it_on() -> None:
    named = SimpleNamespace(use_sampling_support_replay=True)
    assert options_from_namespace(named, environment={}).settings.routing.use_rollout_sampling_mask is True
    both = SimpleNamespace(use_sampling_support_replay=True, use_rollout_sampling_mask=False)
    assert options_from_namespace(both, environment={}).settings.routing.use_rollout_sampling_mask is False
