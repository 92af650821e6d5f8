"""A mock engine that costs next to nothing: SGLang's chat wire from ready pieces of bytes.

A raw asyncio protocol: it finds what it needs in a request (how many prompt ids, which routing rows) by searching the
bytes, and writes a canned reply around those numbers. What it takes beside the server under test is measured too.

``python -m turnkeeper.bench.mock SCRIPT PORT`` serves until it is ended; port 0 is any free one.
``POST /bench {"delay_s": 0.5}`` makes every generation take that long from then on.
"""

import asyncio
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import orjson
import uvloop

from turnkeeper.bench.heads import find_content_length
from turnkeeper.bench.load.workload import CALL_ID, CannedReply
from turnkeeper.bench.rows import RowSource, build_rows
from turnkeeper.channels.routing import RoutingShape
from turnkeeper.tiny import wire

Piece: TypeAlias = bytes | memoryview

VERSION = "1"
_CALL_ID = CALL_ID.encode()
_CHAT = wire.CHAT.encode()
_MARK = b'"@"'
"""Where the numbers go in a canned reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canned:
    """A reply as bytes: ``head`` call id ``middle`` prompt tokens ``tail``, the routing rows and the end."""

    head: bytes
    middle: bytes
    tail: bytes
    reply_tokens: int


@dataclass(slots=True, kw_only=True)
class MockEngine:
    """The state that all connections share: replies, rows, delay."""

    replies: list[Canned]
    rows: RowSource
    delay_s: float = 0.0
    numbers: Iterator[int] = field(default_factory=count)

    def answer(self, path: bytes, body: bytes) -> list[Piece]:
        """Return the reply to one request, in pieces."""
        if path.startswith(_CHAT):
            return self._generate(body)
        if path.startswith(b"/bench"):
            self.delay_s = float(orjson.loads(body)["delay_s"])
        known = {"model_path": "mock", "weight_version": VERSION, "is_generation": True, "max_req_input_len": 262_000}
        return [orjson.dumps(known)]

    def _generate(self, body: bytes) -> list[Piece]:
        number = next(self.numbers)
        canned = self.replies[number % len(self.replies)]
        prompt_tokens = count_prompt(body)
        rows: list[Piece] = []
        if find_number(body, b'"return_routed_experts":') is not None:
            start = find_number(body, b'"routed_experts_start_len":') or 0
            cut = self.rows.cut(start, prompt_tokens + canned.reply_tokens - 1 - start)
            rows = [b',"routed_experts":"', *cut, b'"']
        call_id = b"call_%016x" % number
        prompt = b"%d" % prompt_tokens
        return [canned.head, call_id, canned.middle, prompt, canned.tail, *rows, b"}}]}"]


def count_prompt(body: bytes) -> int:
    """Count the ids of a request's prompt; a request without ids gives the number in a field of the bench's own."""
    if body.startswith(b'{"input_ids":['):
        return body.count(b",", 0, body.find(b"]")) + 1
    return find_number(body, b'"bench_prompt_tokens":') or 0


def find_number(body: bytes, key: bytes) -> int | None:
    """Find the number or flag behind a key near the end of a body; None where the key is missing."""
    place = body.rfind(key, max(0, len(body) - 4096))
    if place < 0:
        return None
    digits = re.match(rb"\d+", body[place + len(key) : place + len(key) + 12])
    return int(digits.group()) if digits else 1


def build_canned(reply: CannedReply) -> Canned:
    """Spell a reply on SGLang's chat wire."""
    logprobs = (-np.random.default_rng(len(reply.ids)).exponential(0.4, len(reply.ids))).tolist()
    tokens = [
        {"token": text, "bytes": list(text.encode()), "logprob": logprob, "top_logprobs": []}
        for text, logprob in zip(reply.texts, logprobs, strict=True)
    ]
    meta = wire.MetaInfo(
        id="bench",
        finish_reason={"type": "stop", "matched": reply.ids[-1]},
        completion_tokens=len(reply.ids),
        weight_version=VERSION,
        e2e_latency=0.1,
        prompt_tokens=0,
        cached_tokens=0,
        output_token_logprobs=list(zip(logprobs, reply.ids, strict=True)),
    )
    value = wire.build_chat_reply(
        rid="bench",
        created=1_700_000_000,
        model="mock",
        message={"reasoning_content": None, **reply.message},
        finish_reason="tool_calls",
        matched_stop=None,
        logprobs={"content": tokens},
        meta_info={**meta.to_json(), "prompt_tokens": "@"},
    )
    body = orjson.dumps(value)
    head, _, rest = body.partition(_CALL_ID)
    middle, _, tail = rest.rpartition(_MARK)
    return Canned(head=head, middle=middle, tail=tail.removesuffix(b"}}]}"), reply_tokens=len(reply.ids))


class Connection(asyncio.Protocol):
    """One client: requests one after the other."""

    def __init__(self, engine: MockEngine) -> None:
        self._engine = engine
        self._received = bytearray()
        self._needed = 0
        self._body_at = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Collect a request; answer it when it is whole."""
        self._received += data
        if not self._needed:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at = end + 4
            self._needed = self._body_at + (find_content_length(self._received, end) or 0)
        if len(self._received) >= self._needed:
            path = bytes(self._received[: self._received.find(b"\r\n")].split(b" ")[1])
            body = bytes(self._received[self._body_at : self._needed])
            del self._received[: self._needed]
            self._needed = 0
            self._schedule(path, body)

    def _schedule(self, path: bytes, body: bytes) -> None:
        pieces = self._engine.answer(path, body)
        if self._engine.delay_s and b"completions" in path:
            asyncio.get_running_loop().call_later(self._engine.delay_s, self._write, pieces)
        else:
            self._write(pieces)

    def _write(self, pieces: list[Piece]) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            size = sum(map(len, pieces))
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size
            transport.writelines([head, *pieces])


def read_script(path: Path) -> MockEngine:
    """Read the engine that a script describes."""
    script = orjson.loads(path.read_bytes())
    replies = [build_canned(CannedReply(**reply)) for reply in script["replies"]]
    return MockEngine(replies=replies, rows=build_rows(RoutingShape(**script["shape"]), script["seed"]))


def write_script(path: Path, replies: list[CannedReply], shape: RoutingShape, seed: int) -> None:
    """Say what a mock engine answers."""
    sizes = {"layers": shape.layers, "topk": shape.topk, "experts": shape.experts}
    path.write_bytes(orjson.dumps({"replies": [reply.to_json() for reply in replies], "shape": sizes, "seed": seed}))


async def serve(engine: MockEngine, port: int) -> None:
    """Serve until cancelled; the one line on stdout says where."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=2048)
    taken = server.sockets[0].getsockname()[1]
    print(f"mock engine ready at http://127.0.0.1:{taken}", flush=True)  # noqa: T201
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(read_script(Path(sys.argv[1])), int(sys.argv[2])))
