"""Routing rows of the embedded engine, through the whole server.

1. One conversation gives the same samples, byte for byte, whether rows were asked for in increments or whole, with its
   retry and its branch.
2. An embedded engine that was started without its flag fails the first turn, by the flag's name.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest

from httpkit import Site, serving
from servicekit import user
from turnkeeper.choices import PauseMode
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import ScriptedEngine, running
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.server import build_app

OPTIONS: dict[str, Any] = {
    "use_rollout_routing_replay": True,
    "num_layers": 4,
    "moe_router_topk": 2,
    "num_experts": 8,
    "on_truncated": "bridge",
    "sample_past_truncation": True,
}
GREEDY = {"temperature": 0, "max_tokens": 12}


@asynccontextmanager
async def running_embedded(*, has_routed_experts: bool = True, **options: Any) -> AsyncGenerator[Site]:
    engine = TinyEngine(EngineOptions(checkpoint=shipped_checkpoint(), has_routed_experts=has_routed_experts))
    async with running(build_app(engine)) as engine_url, serving(engine_url, **OPTIONS, **options) as served:
        url, parts = served
        async with aiohttp.ClientSession() as http:
            yield Site(url=url, engine_url=engine_url, engine=ScriptedEngine(), parts=parts, http=http)


async def play(site: Site, session: str, *, branches: bool) -> None:
    """Three turns, the second one twice, and a branch where the history keeps some."""
    messages: list[dict[str, Any]] = []
    for text in ("What is 2 + 3?", "And 4 times that?", "Thanks."):
        messages.append(user(text))
        for _ in range(2 if len(messages) == 3 else 1):
            reply = await site.chat(session, messages, **GREEDY)
            assert reply.status == 200, reply.body
        messages.append(reply.json()["choices"][0]["message"])
    if branches:
        assert (await site.chat(session, [*messages[:2], user("No.")], **GREEDY)).status == 200


async def collect(site: Site, session: str) -> list[Sample]:
    return list(decode_samples((await site.call("POST", f"{session}/samples", {})).body).samples)


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_increments_and_whole_payloads_give_identical_samples(version: str) -> None:
    found: list[list[Sample]] = []
    for mode in PauseMode:
        async with running_embedded(use_session_server=version, pause_generation_mode=mode) as site:
            session = await site.create()
            await play(site, session, branches=version == "v2")
            found.append(await collect(site, session))
    assert {len(samples) for samples in found} == {2 if version == "v2" else 1}
    for samples in zip(*found, strict=True):
        first = samples[0]
        assert first.rollout_routed_experts is not None
        assert len(first.rollout_routed_experts) == len(first.tokens) - 1
        assert len(np.unique(first.rollout_routed_experts)) > 1
        for other in samples[1:]:
            for name in ("tokens", "loss_mask", "rollout_log_probs", "rollout_routed_experts"):
                assert getattr(other, name).tobytes() == getattr(first, name).tobytes(), name


async def test_an_engine_without_its_flag_fails_the_first_turn_by_name() -> None:
    async with running_embedded(has_routed_experts=False, pause_generation_mode="in_place") as site:
        refused = await site.chat(await site.create(), [user("a")], **GREEDY)
        assert refused.status == 502
        assert "--enable-return-routed-experts" in refused.json()["error"]["message"]
