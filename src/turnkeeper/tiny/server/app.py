"""The engine over HTTP, on SGLang's wire.

The routes that generate are here, control and information routes in `control`. A client that hangs
up aborts its request.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.tiny import wire
from turnkeeper.tiny.engine import TinyEngine
from turnkeeper.tiny.scheduler import Delta, EngineRequest, OutputTokens, Result
from turnkeeper.tiny.server.asgi import EventStreamResponse, encode_event, reply, wait_for_reply
from turnkeeper.tiny.server.chat import TinyChatCall, build_chat_reply, parse_chat
from turnkeeper.tiny.server.chat_stream import ChunkWriter
from turnkeeper.tiny.server.control import MODEL_NAME, ControlRoutes
from turnkeeper.tiny.server.fields import parse_body
from turnkeeper.tiny.server.generate import GenerateCall, MetaOptions, build_chunk_info, build_meta_info, parse_generate


def build_app(engine: TinyEngine) -> Starlette:
    """Build the ASGI application of an engine; its lifespan starts and stops it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        await engine.start()
        try:
            yield
        finally:
            await engine.stop()

    return Starlette(
        routes=[
            Route(wire.GENERATE, GenerateRoute(engine).handle, methods=["POST", "PUT"]),
            Route(wire.CHAT, ChatRoute(engine).handle, methods=["POST"]),
            *ControlRoutes(engine).build_routes(),
        ],
        exception_handlers={RequestError: _refuse},
        lifespan=lifespan,
    )


async def _refuse(request: Request, error: Exception) -> Response:
    """Build a refusal as the route that was called spells it."""
    assert isinstance(error, RequestError)
    status = error.http_status
    payload = wire.build_error(request.url.path, str(error), status=status, param=error.facts.get("param"))
    return reply(payload, status)


class GenerateRoute:
    """``/generate``: ids in, ids out."""

    def __init__(self, engine: TinyEngine) -> None:
        self._engine = engine

    async def handle(self, request: Request) -> Response:
        """Generate, streamed or not."""
        started = time.monotonic()
        fields = parse_body(await request.body())
        text = fields.text("text")
        ids = self._engine.codec.tokenizer.encode(text) if text else None
        call = parse_generate(fields, self._engine.shape, ids)
        call = replace(
            call, meta=_restrict(call.meta, self._engine), request=_keep_routing_key(call.request, request.headers)
        )
        self._engine.require_free(call.request.rid)
        if call.request.is_streamed:
            return EventStreamResponse(self._stream(call, started))
        return await wait_for_reply(request, self._complete(call, started))

    async def _complete(self, call: GenerateCall, started: float) -> Response:
        result = await self._engine.complete(call.request)
        return reply(_build_reply(call, result, started))

    async def _stream(self, call: GenerateCall, started: float) -> AsyncGenerator[bytes]:
        """Chunks that each hold everything so far."""
        text, tokens = "", OutputTokens()
        async with aclosing(self._engine.generate(call.request)) as updates:
            async for update in updates:
                if isinstance(update, Result):
                    yield encode_event(_build_reply(call, update, started))
                else:
                    text, tokens = text + update.text, tokens + update.tokens
                    yield encode_event(_build_chunk(call, text, tokens, update))
        yield wire.DONE_EVENT


class ChatRoute:
    """``/v1/chat/completions``."""

    def __init__(self, engine: TinyEngine) -> None:
        self._engine = engine

    async def handle(self, request: Request) -> Response:
        """Complete, streamed or not."""
        started = time.monotonic()
        fields = parse_body(await request.body())
        engine = self._engine
        call = parse_chat(fields, engine.shape, engine.codec, model=MODEL_NAME, created=int(time.time()))
        call = replace(
            call, meta=_restrict(call.meta, engine), request=_keep_routing_key(call.request, request.headers)
        )
        engine.require_free(call.request.rid)
        if call.request.is_streamed:
            return EventStreamResponse(self._stream(call))
        return await wait_for_reply(request, self._complete(call, started))

    async def _complete(self, call: TinyChatCall, started: float) -> Response:
        result = await self._engine.complete(call.request)
        latency_s = time.monotonic() - started
        return reply(build_chat_reply(call, result, self._engine.codec, self._engine.vocabulary, latency_s))

    async def _stream(self, call: TinyChatCall) -> AsyncGenerator[bytes]:
        writer = ChunkWriter(call, self._engine.codec, self._engine.vocabulary)
        async with aclosing(self._engine.generate(call.request)) as updates:
            async for update in updates:
                for chunk in writer.write(update):
                    yield encode_event(chunk)
        yield wire.DONE_EVENT


def _keep_routing_key(request: EngineRequest, headers: Headers) -> EngineRequest:
    return replace(request, routing_key=headers.get("x-smg-routing-key", ""))


def _restrict(meta: MetaOptions, engine: TinyEngine) -> MetaOptions:
    """Without the server's flag, routing rows are silently left out."""
    return meta if engine.options.has_routed_experts else replace(meta, rows_start=None)


def _build_reply(call: GenerateCall, result: Result, started: float) -> JsonObject:
    meta = build_meta_info(result, call.meta, time.monotonic() - started)
    return wire.build_generate_reply(text=result.text, ids=result.tokens.ids, meta_info=meta.to_json())


def _build_chunk(call: GenerateCall, text: str, tokens: OutputTokens, delta: Delta) -> JsonObject:
    meta = build_chunk_info(call.request, call.meta, delta, tokens)
    return wire.build_generate_reply(text=text, ids=tokens.ids, meta_info=meta.to_json())
