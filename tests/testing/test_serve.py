"""An ASGI application on a free port.

1. It answers at the URL as soon as the block begins, and no longer after it ended.
2. Its lifespan runs; one that fails to start is an error, not a hang.
3. A request still in flight at the end is cancelled, not waited for without end.
4. The threaded form serves a synchronous client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from turnkeeper.testing import running, running_in_thread


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def test_it_answers_inside_the_block_and_not_after_it() -> None:
    steps: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        steps.append("start")
        yield
        steps.append("stop")

    async with httpx.AsyncClient() as client:
        async with running(Starlette(routes=[Route("/", _hello)], lifespan=lifespan)) as url:
            assert (await client.get(url)).text == "hello"
            assert steps == ["start"]
        assert steps == ["start", "stop"]
        with pytest.raises(httpx.TransportError):
            await client.get(url)


async def test_an_application_that_fails_to_start_is_an_error() -> None:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    with pytest.raises(RuntimeError, match="failed to start"):
        async with running(Starlette(lifespan=lifespan)):
            pass


async def test_a_request_in_flight_is_cancelled_at_the_end() -> None:
    arrived, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(request: Request) -> PlainTextResponse:
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return PlainTextResponse("never")

    async with httpx.AsyncClient() as client:
        async with running(Starlette(routes=[Route("/", hang)]), drain_s=0) as url:
            call = asyncio.create_task(client.get(url))
            await arrived.wait()
        await cancelled.wait()
        await asyncio.gather(call, return_exceptions=True)


def test_a_thread_serves_a_synchronous_client() -> None:
    with running_in_thread(Starlette(routes=[Route("/", _hello)])) as url:
        assert httpx.get(url).text == "hello"
