"""Which client should call engines: ``python -m benchmarks.client``.

The same replies of a mock engine are taken in turns by `EngineClient`, which stands on aiohttp, in both of its ways
(in the caller's event loop; and in a thread of its own, where it takes large bodies past the library), and by
`SmallClient`, which does as little as a client can. A sink that only counts shows the clients alone, `ReplyBody` what
is done with a reply anyway. Figures are milliseconds of this process's CPU time a reply.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.small import PATH, SmallClient
from turnkeeper.bench.load.workload import SHORT
from turnkeeper.bench.server import find_checkpoint
from turnkeeper.bench.stack import Material, running_mock
from turnkeeper.engines import EngineClient
from turnkeeper.engines.net.client import BodySink
from turnkeeper.engines.reply import ReplyBody
from turnkeeper.headers import JSON_HEADERS
from turnkeeper.jsontypes import JsonObject, encode_json

RUNS = 9
MODEL = "Qwen3-30B-A3B"

Post: TypeAlias = Callable[[bytes, BodySink], Awaitable[None]]
"""Posts a body; the reply's goes to the sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One kind of reply, by the request that it answers."""

    name: str
    prompt_tokens: int
    fields: JsonObject
    """Beside the prompt's ids."""
    calls: int
    """Of one run: more where one alone takes little time."""

    @property
    def body(self) -> bytes:
        """The request, as long as that of a turn."""
        ids = np.arange(self.prompt_tokens, dtype=np.int32) % 150_000
        return b'{"input_ids":' + encode_json(ids) + b"," + encode_json({"logprobs": True, **self.fields})[1:]


_ROWS: JsonObject = {"return_routed_experts": True}
REPLIES: tuple[Reply, ...] = (
    Reply(name="no rows", prompt_tokens=16_000, fields={}, calls=100),
    Reply(
        name="1,680 rows", prompt_tokens=16_000, fields={**_ROWS, "routed_experts_start_len": 16_000 - 1_349}, calls=10
    ),
    Reply(name="32,768 rows", prompt_tokens=32_437, fields=_ROWS, calls=1),
)


class CountingSink:
    """Counts, and keeps nothing."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.text = bytearray()
        self.size_bytes = 0

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take the next part."""
        self.size_bytes += len(chunk)


CLIENTS = ("aiohttp", "apart", "small")
SINKS: dict[str, Callable[[], BodySink]] = {"counting": CountingSink, "ReplyBody": ReplyBody}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFigure:
    """One kind of reply into one kind of sink, by every client."""

    reply: str
    size_bytes: int
    """Of the reply's body."""
    sink: str
    runs_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in CLIENTS})
    """CPU time a reply by client, run by run."""

    def compare(self, client: str) -> float:
        """A client's median in medians of the small one."""
        return median(self.runs_ms[client]) / median(self.runs_ms["small"])


@asynccontextmanager
async def open_clients(url: str) -> AsyncGenerator[dict[str, Post]]:
    """Every client of one engine, by name."""
    engine, parts = EngineClient(), urlsplit(url)
    loop = asyncio.get_running_loop()
    _, small = await loop.create_connection(SmallClient, parts.hostname or "", parts.port or 80)

    async def post(body: bytes, sink: BodySink, *, is_large: bool = False) -> None:
        reply = await engine.call_into(sink, url + PATH, body=body, headers=JSON_HEADERS.items(), is_large=is_large)
        if reply.status != 200:
            raise ConnectionError(f"the mock answered {reply.status}")

    try:
        yield {"aiohttp": post, "apart": partial(post, is_large=True), "small": small.post}
    finally:
        small.close()
        await engine.close()


async def measure_clients(url: str, replies: Sequence[Reply] = REPLIES, runs: int = RUNS) -> list[ClientFigure]:
    """Every kind of reply into every kind of sink, the clients in turns."""
    figures: list[ClientFigure] = []
    async with open_clients(url) as clients:
        for reply in replies:
            for name, build_sink in SINKS.items():
                counted = CountingSink()
                await clients["aiohttp"](reply.body, counted)
                figure = ClientFigure(reply=reply.name, size_bytes=counted.size_bytes, sink=name)
                for client in CLIENTS:
                    await clients[client](reply.body, build_sink())
                for _ in range(runs):
                    for client in CLIENTS:
                        figure.runs_ms[client].append(await _time_calls(clients[client], reply, build_sink))
                figures.append(figure)
    return figures


async def _time_calls(post: Post, reply: Reply, build_sink: Callable[[], BodySink]) -> float:
    body = reply.body
    started = process_time()
    for _ in range(reply.calls):
        await post(body, build_sink())
    return (process_time() - started) * 1e3 / reply.calls


def render_figures(figures: Sequence[ClientFigure]) -> Table:
    """The figures as a table."""
    table = Table(title="CPU ms a reply: median (least)", title_justify="left")
    for place, name in enumerate(("reply", "size KB", "sink", *CLIENTS, "aiohttp / small", "apart / small")):
        table.add_column(name, justify="left" if place in (0, 2) else "right")
    for figure in figures:
        spelled = (f"{median(runs):.3g} ({min(runs):.3g})" for runs in figure.runs_ms.values())
        ratios = (f"{figure.compare(client):.1f}" for client in CLIENTS[:2])
        table.add_row(figure.reply, f"{figure.size_bytes / 1e3:,.0f}", figure.sink, *spelled, *ratios)
    return table


async def measure(checkpoint: Path, seed: int = 0) -> list[ClientFigure]:
    """Start a mock and measure every client against it."""
    with tempfile.TemporaryDirectory() as folder:
        material = Material.read(checkpoint, Path(folder), seed)
        async with running_mock(material, MODEL, SHORT) as mock:
            return await measure_clients(mock.url)


def main(
    checkpoint: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with the replies' tokenizer.")] = None,
) -> None:
    """Measure the clients."""
    Console().print(render_figures(uvloop.run(measure(find_checkpoint(checkpoint)))))
