"""The server asks its engines what their routes are worth, before an agent does.

1. A route that drops what a turn needs is a problem in /health, in the metrics and in one warning; the first turn gets
   the same explanation as a 502 and no engine is asked; a router started anew is found sound without a restart here.
2. What a probe samples is counted apart, and belongs to no session.
3. In front of a prefill/decode pair whose router joins rows, turns take the generate route by themselves, and samples
   are those of one engine alone; with the chat wire chosen, the first turn says what is wrong.
4. An engine that is not there is a state and a 502, and is probed once it is.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from httpkit import Site
from probekit import build_engine, encode, probing_site
from servicekit import get_renderer, user
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import MoeShape, ScriptedPair, ScriptedReply, running, unreachable_url


async def wait_for_route(site: Site, verdict: str) -> dict[str, Any]:
    """Health, once the probe has come to this verdict."""
    async with asyncio.timeout(10):
        while True:
            health = (await site.call("GET", "/health")).json()
            if [engine["route"] for engine in health["engines"]] == [verdict]:
                return health


async def read_metric(site: Site, name: str) -> float:
    lines = (await site.call("GET", "/metrics")).body.decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


async def test_an_unfit_route_is_told_everywhere_and_heals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "turnkeeper.reports")
    engine = build_engine()
    async with running(engine) as url, probing_site(engine, url) as site:
        session = await site.create()
        replies = [await site.chat(session, [user("hi")]) for _ in range(2)]
        health = await wait_for_route(site, "unfit")
        info = (await site.call("GET", session)).json()["metadata"]["turnkeeper"]
        assert info["accounting"]["calls"] == {}
        unfit = await read_metric(site, 'turnkeeper_engine_routes{verdict="unfit"}')
        assert not engine.generations
        engine.moe = MoeShape()
        assert site.parts.routes is not None
        site.parts.routes.routes[url].checked_at = -1e9  # long ago
        await wait_for_route(site, "sound")
        healed = await site.chat(session, [user("hi")])
        assert (await site.call("GET", "/health")).json()["problems"] == []
    assert (health["status"], health["engine"]) == ("ok", "serving")
    assert "--enable-return-routed-experts" in health["problems"][0]
    assert url in health["problems"][0]
    assert unfit == 1
    for reply in replies:
        assert (reply.status, reply.json()["error"]["code"]) == (502, "engine_protocol")
        assert "--enable-return-routed-experts" in reply.json()["error"]["message"]
    assert healed.status == 200
    changes = [message for record in caplog.records if "route_changed" in (message := record.getMessage())]
    assert [("state=unfit" in change, "--enable-return-routed-experts" in change) for change in changes] == [
        (True, True)
    ]


async def test_what_a_probe_samples_is_counted_apart() -> None:
    engine = build_engine(moe=MoeShape())
    async with running(engine) as url, probing_site(engine, url) as site:
        await wait_for_route(site, "sound")
        session = await site.create()
        assert (await site.chat(session, [user("hi")])).status == 200
        probed = await read_metric(site, "turnkeeper_probe_tokens_total")
        sampled = await read_metric(site, "turnkeeper_tokens_sampled_total")
        info = (await site.call("GET", session)).json()["metadata"]["turnkeeper"]
    assert probed == 2
    assert sampled == info["accounting"]["sampled"]
    assert [call.json["rid"].startswith("turnkeeper-probe") for call in engine.probes] == [True]
    assert len(engine.generations) == 1


async def play(site: Site) -> Sample:
    """Two turns, and the sample of them."""
    session = await site.create()
    first = await site.chat(session, [user("hi")])
    assert first.status == 200, first.body
    message = first.json()["choices"][0]["message"]
    assert (await site.chat(session, [user("hi"), message, user("and?")])).status == 200
    [sample] = decode_samples((await site.call("POST", f"{session}/samples", {})).body).samples
    return sample


SCRIPT = [ScriptedReply(text="first"), ScriptedReply(text="second")]


@asynccontextmanager
async def pair_site(*, stale_rows: bool = False, **options: Any) -> AsyncGenerator[tuple[Site, ScriptedPair]]:
    stop_id = get_renderer().tokenizer.get_id("<|im_end|>")
    pair = ScriptedPair(script=SCRIPT, encode=encode, stop_id=stop_id, stale_rows=stale_rows)
    async with (
        running(pair.prefill) as one,
        running(pair.decode) as other,
        running(pair.router(one, other)) as url,
        probing_site(pair.decode, url, **options) as site,
    ):
        yield site, pair


@pytest.mark.parametrize("stale_rows", [False, True])
async def test_samples_of_a_pair_are_those_of_one_engine(stale_rows: bool) -> None:
    async with pair_site(stale_rows=stale_rows) as (site, pair):
        health = await wait_for_route(site, "sound")
        sample = await play(site)
    engine = build_engine(script=SCRIPT, moe=MoeShape())
    async with running(engine) as url, probing_site(engine, url) as site:
        alone = await play(site)
    assert health["engines"][0]["wire"] == "generate"
    assert {call.path for call in pair.decode.generations} == {"/generate"}
    assert sample.tokens.tolist() == alone.tokens.tolist()
    assert sample.rollout_log_probs.tolist() == alone.rollout_log_probs.tolist()
    assert sample.rollout_routed_experts is not None
    assert alone.rollout_routed_experts is not None
    assert np.array_equal(sample.rollout_routed_experts, alone.rollout_routed_experts)


@pytest.mark.parametrize("stale_rows", [False, True])
async def test_a_pair_on_the_chosen_chat_wire_is_named(stale_rows: bool) -> None:
    async with pair_site(stale_rows=stale_rows, engine_wire="chat") as (site, pair):
        reply = await site.chat(await site.create(), [user("hi")])
    assert (reply.status, reply.json()["error"]["code"]) == (502, "engine_protocol")
    assert "prefill/decode disaggregation" in reply.json()["error"]["message"]
    assert "--engine-wire generate" in reply.json()["error"]["message"]
    assert not pair.decode.generations


async def test_an_engine_that_is_not_there_is_a_state() -> None:
    with unreachable_url() as url:
        async with probing_site(build_engine(), url) as site:
            reply = await site.chat(await site.create(), [user("hi")])
            health = (await site.call("GET", "/health")).json()
    assert (reply.status, reply.json()["error"]["code"]) == (502, "engine")
    assert (health["engine"], health["problems"]) == ("unreachable", [])
    assert health["engines"][0]["error"]
