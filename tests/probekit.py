"""A whole server that probes its engines, in front of scripted ones whose routing is `MoeShape`'s."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from httpkit import Site
from servicekit import get_renderer
from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.http.app import build_app
from turnkeeper.server.build import build_parts
from turnkeeper.testing import ScriptedEngine, running
from turnkeeper.tiny.checkpoint import shipped_checkpoint

OPTIONS: dict[str, Any] = {
    "hf_checkpoint": str(shipped_checkpoint()),
    "tito_model": "qwen3",
    "use_rollout_routing_replay": True,
    "num_layers": 2,
    "moe_router_topk": 2,
    "num_experts": 8,
    "probe_interval": 0.05,
}


def encode(text: str) -> list[int]:
    return get_renderer().tokenizer.encode(text).tolist()


def build_engine(**options: Any) -> ScriptedEngine:
    return ScriptedEngine(encode=encode, stop_id=get_renderer().tokenizer.get_id("<|im_end|>"), **options)


@asynccontextmanager
async def probing_site(engine: ScriptedEngine, engine_url: str, **options: Any) -> AsyncGenerator[Site]:
    parts = build_parts(resolve(load({**OPTIONS, "backend_url": engine_url, **options})))
    async with running(build_app(parts.backend)) as url, aiohttp.ClientSession() as http:
        yield Site(url=url, engine_url=engine_url, engine=engine, parts=parts, http=http)
