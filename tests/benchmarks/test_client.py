"""The measurement of the engines' HTTP client, at a small scale.

1. Every client takes the same replies, into every kind of sink, so many times as asked.
2. A reply that is no success, and a connection that ends, are errors and no figures.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from benchmarks.client import (
    CLIENTS,
    REPLIES,
    SINKS,
    CountingSink,
    Reply,
    measure_clients,
    open_clients,
    render_figures,
)
from turnkeeper.bench.load.workload import CALL_ID, CannedReply
from turnkeeper.bench.mock import Connection, MockEngine, Piece, build_canned, count_prompt
from turnkeeper.bench.rows import build_rows
from turnkeeper.channels.routing import RoutingShape

SHAPE = RoutingShape(layers=2, topk=2, experts=16)
CANNED = CannedReply(
    message={"role": "assistant", "content": "So it is.", "tool_calls": [{"id": CALL_ID}]}, ids=[5, 6], texts=["a", "b"]
)
FEW_ROWS = Reply(name="few rows", prompt_tokens=300, fields={"return_routed_experts": True}, calls=2)


class CountedEngine(MockEngine):
    """Remembers how long its replies were."""

    def __init__(self) -> None:
        super().__init__(replies=[build_canned(CANNED)], rows=build_rows(SHAPE, 1))
        self.sizes: list[int] = []

    def answer(self, path: bytes, body: bytes) -> list[Piece]:
        pieces = super().answer(path, body)
        self.sizes.append(sum(map(len, pieces)))
        return pieces


@asynccontextmanager
async def serving(build_protocol: Callable[[], asyncio.Protocol]) -> AsyncGenerator[str]:
    async with await asyncio.get_running_loop().create_server(build_protocol, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_every_client_takes_every_reply_into_every_sink() -> None:
    engine = CountedEngine()
    async with serving(lambda: Connection(engine)) as url:
        figures = await measure_clients(url, [FEW_ROWS], runs=3)
    assert [figure.sink for figure in figures] == list(SINKS)
    assert {figure.size_bytes for figure in figures} == set(engine.sizes)
    assert [{name: len(runs) for name, runs in figure.runs_ms.items()} for figure in figures] == [
        dict.fromkeys(CLIENTS, 3)
    ] * 2
    assert len(engine.sizes) == len(SINKS) * (1 + len(CLIENTS) * (1 + 3 * FEW_ROWS.calls))
    assert all(figure.compare(name) > 0 for figure in figures for name in CLIENTS)
    assert render_figures(figures).row_count == 2


async def test_every_client_hands_on_the_same_bytes() -> None:
    engine = CountedEngine()
    sinks = [CountingSink() for _ in CLIENTS]
    async with serving(lambda: Connection(engine)) as url, open_clients(url) as clients:
        for name, sink in zip(CLIENTS, sinks, strict=True):
            await clients[name](FEW_ROWS.body, sink)
    assert [sink.size_bytes for sink in sinks] == engine.sizes


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply.name)
def test_a_request_is_as_long_as_it_says(reply: Reply) -> None:
    assert count_prompt(reply.body) == reply.prompt_tokens


class Refusing(asyncio.Protocol):
    """Answers every request with a 500."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.write(b"HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n")


class HangingUp(Refusing):
    """Ends the connection in place of a reply."""

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.Transport)
        self.transport.close()


@pytest.mark.parametrize("name", CLIENTS)
async def test_an_error_status_is_no_figure(name: str) -> None:
    async with serving(Refusing) as url, open_clients(url) as clients:
        with pytest.raises(ConnectionError, match="500"):
            await clients[name](b"{}", CountingSink())


async def test_a_connection_that_ends_is_no_figure() -> None:
    async with serving(HangingUp) as url, open_clients(url) as clients:
        with pytest.raises(ConnectionError, match="ended"):
            await clients["small"](b"{}", CountingSink())
