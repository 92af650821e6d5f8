"""The whole server on a loopback port, in front of a scripted engine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import orjson

from servicekit import get_renderer
from turnkeeper.choices import EngineKind, EngineWire
from turnkeeper.clock import SystemClock
from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.engines import Engine, SglangEngine, SglangGenerateEngine, VllmEngine, build_parser
from turnkeeper.http.app import build_app
from turnkeeper.http.backend import Backend
from turnkeeper.http.protocol import HttpProtocol
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Renderer
from turnkeeper.server.base import Dependencies
from turnkeeper.server.build import ServerParts, join_server
from turnkeeper.server.engines import build_client
from turnkeeper.server.serve import build_connection_limits
from turnkeeper.server.store import BuildKeeper, keep_in_memory
from turnkeeper.service.service import SessionService
from turnkeeper.service.sessions import SessionEntry
from turnkeeper.testing import ScriptedEngine, running


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One HTTP response."""

    status: int
    headers: Any
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(slots=True, kw_only=True)
class Site:
    """A running server."""

    url: str
    engine_url: str
    engine: ScriptedEngine
    parts: ServerParts
    http: aiohttp.ClientSession

    @property
    def backend(self) -> Backend:
        """What the routes call."""
        return self.parts.backend

    @property
    def service(self) -> SessionService:
        """The sessions."""
        return self.parts.backend.sessions

    def find_entry(self, session_id: str) -> SessionEntry:
        """What the server holds of a session."""
        return self.parts.registry.get(session_id, SystemClock().now())

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """One request; a body that is no bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, f"{self.url}{path}", data=data, headers=named) as response:
            return Reply(status=response.status, headers=response.headers, body=await response.read())

    async def create(self, **body: Any) -> str:
        """Open a session; its path."""
        return f"/sessions/{(await self.call('POST', '/sessions', body)).json()['session_id']}"

    async def chat(self, session: str, messages: list[JsonObject], **fields: Any) -> Reply:
        """One turn."""
        return await self.call("POST", f"{session}/v1/chat/completions", {"messages": messages, **fields})


@asynccontextmanager
async def running_site(
    engine: ScriptedEngine | None = None,
    /,
    *,
    renderer: Renderer | None = None,
    build_keeper: BuildKeeper = keep_in_memory,
    **options: Any,
) -> AsyncGenerator[Site]:
    """Serve with these options (attribute names of the flags) in front of the engine.

    Without a renderer the model is the embedded engine's.
    """
    tokenizer = (renderer or get_renderer()).tokenizer
    engine = engine or ScriptedEngine(encode=lambda text: tokenizer.encode(text).tolist())
    async with (
        running(engine) as engine_url,
        serving(engine_url, renderer=renderer, build_keeper=build_keeper, **options) as served,
    ):
        url, parts = served
        async with aiohttp.ClientSession() as http:
            yield Site(url=url, engine_url=engine_url, engine=engine, parts=parts, http=http)


@asynccontextmanager
async def serving(
    engine_url: str, *, renderer: Renderer | None = None, build_keeper: BuildKeeper = keep_in_memory, **options: Any
) -> AsyncGenerator[tuple[str, ServerParts]]:
    """Serve in front of whatever is at the URL."""
    config = resolve(load({"hf_checkpoint": "x", "backend_url": engine_url, **options}))
    client = build_client(config)
    engine_url = config.engine.backend_url[0]
    renderer = renderer or get_renderer()
    parse = build_parser(renderer)
    engine: Engine = SglangEngine(engine_url, client)
    if config.engine.engine is EngineKind.VLLM:
        engine = VllmEngine(engine_url, client, parse)
    elif config.engine.engine_wire is EngineWire.GENERATE:
        engine = SglangGenerateEngine(engine_url, client, parse)
    parts = join_server(
        config,
        renderer=renderer,
        checkpoint_config={},
        client=client,
        connect=lambda wrap: wrap(engine_url, engine),
        dependencies=Dependencies.real(),
        build_keeper=build_keeper,
    )
    async with running(
        build_app(parts.backend), protocol=partial(HttpProtocol, limits=build_connection_limits(parts))
    ) as url:
        yield url, parts
