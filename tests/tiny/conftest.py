"""The small engine as a server on a free port."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tiny.builders import LONG_SHAPE, WEIGHTS, write_small_checkpoint
from turnkeeper.testing import running
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.server import build_app


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoint folders of one shape."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return (
        write_small_checkpoint(folder / "one", WEIGHTS[0], LONG_SHAPE),
        write_small_checkpoint(folder / "two", WEIGHTS[1], LONG_SHAPE),
    )


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running engine and a client of it."""

    engine: TinyEngine
    client: httpx.AsyncClient

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        return await self.client.post(path, json={} if body is None else body)

    async def generate(self, prompt: list[int], *, count: int = 4, **fields: Any) -> dict[str, Any]:
        """A ``/generate`` that ignores the stop token."""
        sampling = {"max_new_tokens": count, "ignore_eos": True, **fields.pop("sampling_params", {})}
        reply = await self.post(
            "/generate", {"input_ids": prompt, "return_logprob": True, "sampling_params": sampling, **fields}
        )
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def chat(self, **fields: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "ignore_eos": True, **fields}
        reply = await self.post("/v1/chat/completions", body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    @asynccontextmanager
    async def in_flight(self, rid: str = "long", **fields: Any) -> AsyncIterator["Flight"]:
        """A long streamed ``/generate`` that has sampled its first tokens."""
        body = {
            "input_ids": [5, 6, 7],
            "rid": rid,
            "stream": True,
            "return_logprob": True,
            "sampling_params": {"max_new_tokens": 60_000, "ignore_eos": True},
            **fields,
        }
        async with self.client.stream("POST", "/generate", json=body) as response:
            assert response.status_code == 200
            flight = Flight(response.aiter_lines())
            flight.first = await flight.next_chunk()
            yield flight

    async def count_requests(self) -> tuple[int, int]:
        """How many requests run and wait."""
        return await self.engine.call(lambda scheduler: (scheduler.running_count, scheduler.waiting_count))

    async def wait_for(self, running: int, waiting: int) -> None:
        """Return when so many requests run and wait; each look lets the engine's thread go on."""
        async with asyncio.timeout(20):
            while await self.count_requests() != (running, waiting):
                pass

    async def wait_until_idle(self) -> None:
        """Return when no request is left."""
        await self.wait_for(0, 0)


class Flight:
    """The chunks of a stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.first: dict[str, Any] | None = None
        """What came first; all of a short reply, where the engine was not asked in between."""

    async def next_chunk(self) -> dict[str, Any] | None:
        """The next chunk; None at the end."""
        async for line in self._lines:
            if line == "data: [DONE]":
                return None
            if line:
                return json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream ended without [DONE]")

    async def last_chunk(self) -> dict[str, Any]:
        """The last chunk before the end."""
        last = None
        while (chunk := await self.next_chunk()) is not None:
            last = chunk
        assert last is not None
        return last


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(checkpoints: tuple[Path, Path]) -> Serve:
    """Serve a small engine: ``async with serve(max_batch=1) as served``."""

    @asynccontextmanager
    async def serving(**options: Any) -> AsyncIterator[Served]:
        engine = TinyEngine(EngineOptions(checkpoint=checkpoints[0], **options))
        async with running(build_app(engine)) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield Served(engine=engine, client=client)

    return serving


@pytest.fixture
async def served(serve: Serve) -> AsyncIterator[Served]:
    """A small engine, served."""
    async with serve() as it:
        yield it
