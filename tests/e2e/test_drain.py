"""A server that gets SIGTERM, as a process and over raw connections.

1. While it drains it listens on: existing sessions are read, collected and deleted, on new connections and on old ones,
   also by a client that offers HTTP/2. New sessions and turns are refused in each dialect's form; `/health` is a 503.
2. Turns in flight, streamed or not, are delivered whole, and a retry joins its turn.
3. It ends when the last session is deleted, when the drain timeout is over, or at once at a second signal; its clients
   hear of it.
4. Each process of a group drains by itself.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from servicekit import get_renderer, user
from turnkeeper.samples import decode_samples
from turnkeeper.testing import ScriptedEngine, ScriptedReply, running
from turnkeeper.tiny.checkpoint import shipped_checkpoint

SRC = Path(__file__).parents[2] / "src"
ASK = {"messages": [user("a")]}
DIALECTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "chat": ("v1/chat/completions", ASK, 503),
    "messages": ("v1/messages", {**ASK, "max_tokens": 9}, 529),
    "responses": ("v1/responses", {"input": "a"}, 503),
}


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


class Wire:
    """One raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url: str) -> "Wire":
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, method: str, path: str, body: Any = None, headers: str = "") -> None:
        data = b"" if body is None else orjson.dumps(body)
        head = f"{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)

    async def read(self) -> Reply:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Reply(int(first.split()[1]), headers, body)

    async def ask(self, method: str, path: str, body: Any = None, headers: str = "") -> Reply:
        self.send(method, path, body, headers)
        return await self.read()


async def ask(url: str, method: str, path: str, body: Any = None, headers: str = "") -> Reply:
    """One request on a connection of its own."""
    wire = await Wire.open(url)
    try:
        return await wire.ask(method, path, body, headers)
    finally:
        wire.writer.close()


async def create(url: str) -> str:
    return f"/sessions/{(await ask(url, 'POST', '/sessions')).json()['session_id']}"


@dataclass(slots=True)
class Server:
    urls: list[str]
    process: asyncio.subprocess.Process
    log: Path
    wires: list[Wire] = field(default_factory=list[Wire])

    async def open(self, url: str) -> Wire:
        """A connection that is closed at the end."""
        wire = await Wire.open(url)
        self.wires.append(wire)
        return wire

    async def wait_for_drain(self, url: str) -> None:
        """Return once the server says that it drains."""
        while (await ask(url, "GET", "/health")).status == 200:
            pass

    async def drain(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        for url in self.urls:
            await self.wait_for_drain(url)

    async def wait(self) -> int:
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def serving(engine: ScriptedEngine, tmp_path: Path, *options: str, workers: int = 1) -> AsyncGenerator[Server]:
    log = tmp_path / "log"
    async with running(engine) as engine_url:
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "turnkeeper", "serve", "--hf-checkpoint", str(shipped_checkpoint())],
                *["--backend-url", engine_url, "--tito-model", "qwen3", "--session-server-port", "0"],
                *["--session-server-workers", str(workers), *options],
                env={**os.environ, "PYTHONPATH": str(SRC)},
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
            )
        assert process.stdout is not None
        try:
            lines = [(await process.stdout.readline()).decode() for _ in range(workers)]
            server = Server([line.split()[-1] for line in lines], process, log)
            yield server
            for wire in server.wires:
                wire.writer.close()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert "Traceback" not in log.read_text()


def build_engine(*script: ScriptedReply) -> ScriptedEngine:
    return ScriptedEngine(script, encode=lambda text: get_renderer().tokenizer.encode(text).tolist())


async def test_a_draining_server_serves_what_it_holds_and_ends_with_its_last_session(tmp_path: Path) -> None:
    answered = asyncio.Event()
    engine = build_engine(ScriptedReply(text="first"), *(ScriptedReply(text="held", wait=answered) for _ in range(2)))
    async with serving(engine, tmp_path) as server:
        (url,) = server.urls
        done, held, streamed = [await create(url) for _ in range(3)]
        old = await server.open(url)
        assert (await old.ask("POST", f"{done}/v1/chat/completions", ASK)).status == 200
        turn, stream = await server.open(url), await server.open(url)
        turn.send("POST", f"{held}/v1/chat/completions", ASK)
        stream.send("POST", f"{streamed}/v1/chat/completions", {**ASK, "stream": True})
        await engine.wait_for_generations(3)
        await server.drain()

        for wire in (old, None):  # a connection from before, and new ones
            call = wire.ask if wire is not None else lambda *given: ask(url, *given)
            health = await call("GET", "/health")
            assert (health.status, health.json()["status"]) == (503, "draining")
            ready = await call("GET", "/ready")
            assert (ready.status, ready.json()["reason"]) == (503, "draining")
            refused = await call("POST", "/sessions", {})
            assert (refused.status, refused.json()["code"]) == (503, "server_draining")
            assert int(refused.headers["retry-after"]) > 0
            assert (await call("GET", done)).json()["records"]
            assert (await call("HEAD", done)).status == 200
            assert len((await call("GET", "/sessions")).json()["sessions"]) == 3
            samples = await call("POST", f"{done}/samples", {"metadata": {"reward": 0.5}})
            assert len(decode_samples(samples.body).samples) == 1
        for path, body, status in DIALECTS.values():
            for streaming in ({}, {"stream": True}):
                refused = await ask(url, "POST", f"{done}/{path}", {**body, **streaming})
                assert (refused.status, refused.json()["error"]["code"]) == (status, "server_draining")
                assert int(refused.headers["retry-after"]) > 0
        offer = "upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\nconnection: Upgrade, HTTP2-Settings\r\n"
        assert (await ask(url, "POST", f"{done}/samples", {}, offer)).status == 200
        assert (await ask(url, "POST", "/sessions", {}, offer)).status == 503

        retry = await server.open(url)
        retry.send("POST", f"{held}/v1/chat/completions", ASK, "x-stainless-retry-count: 1\r\n")
        assert (await ask(url, "GET", "/health")).status == 503  # the retry is on its way
        answered.set()
        for wire in (turn, retry):
            assert (await wire.read()).json()["choices"][0]["message"]["content"] == "held"
        assert b"[DONE]" in (await stream.read()).body
        assert len(engine.generations) == 3

        for session in (done, held, streamed):
            assert server.process.returncode is None
            assert (await ask(url, "POST", f"{session}/samples", {})).status == 200
            assert (await ask(url, "DELETE", session)).status == 204
        assert await server.wait() == -signal.SIGTERM
        assert await old.reader.read() == b""  # an idle connection is closed in good order


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(first: signal.Signals, second: signal.Signals, tmp_path: Path) -> None:
    engine = build_engine(ScriptedReply(wait=asyncio.Event()))
    async with serving(engine, tmp_path) as server:
        (url,) = server.urls
        session, turn = await create(url), await server.open(url)
        turn.send("POST", f"{session}/v1/chat/completions", ASK)
        await engine.wait_for_generations(1)
        server.process.send_signal(first)
        await server.wait_for_drain(url)
        told = time.monotonic()
        server.process.send_signal(second)
        cut = await turn.read()
        assert (cut.status, cut.json()["error"]["code"]) == (404, "session_closed")
        assert await server.wait() in (-first, -second)
        assert time.monotonic() - told < 5


async def test_two_signals_that_come_as_one_end_it_at_once(tmp_path: Path) -> None:
    """A trainer's end may bring both: SIGINT of the terminal to all processes, and its own SIGTERM to its children."""
    engine = build_engine(ScriptedReply(wait=asyncio.Event()))
    async with serving(engine, tmp_path) as server:
        (url,) = server.urls
        session, turn = await create(url), await server.open(url)
        turn.send("POST", f"{session}/v1/chat/completions", ASK)
        await engine.wait_for_generations(1)
        told = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGTERM)
        cut = await turn.read()
        assert (cut.status, cut.json()["error"]["code"]) == (404, "session_closed")
        await server.wait()
        assert time.monotonic() - told < 15


async def test_the_drain_timeout_ends_it_and_its_clients_hear_of_it(tmp_path: Path) -> None:
    engine = build_engine(ScriptedReply(wait=asyncio.Event()))
    async with serving(engine, tmp_path, "--drain-timeout", "0.5") as server:
        (url,) = server.urls
        session, turn = await create(url), await server.open(url)
        turn.send("POST", f"{session}/v1/chat/completions", ASK)
        await engine.wait_for_generations(1)
        server.process.send_signal(signal.SIGTERM)
        cut = await turn.read()
        assert (cut.status, cut.json()["error"]["code"]) == (404, "session_closed")
        assert await server.wait() == -signal.SIGTERM
    assert "sessions: 1, turns in flight: 1" in server.log.read_text()


async def test_a_client_that_never_finishes_its_body_does_not_hold_it(tmp_path: Path) -> None:
    async with serving(build_engine(), tmp_path, "--drain-timeout", "0.5") as server:
        wire, session = await server.open(server.urls[0]), await create(server.urls[0])
        assert (await ask(server.urls[0], "POST", f"{session}/v1/chat/completions", ASK)).status == 200
        wire.writer.write(b"POST /sessions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait() == -signal.SIGTERM


async def test_each_process_of_a_group_drains_by_itself(tmp_path: Path) -> None:
    async with serving(build_engine(), tmp_path, workers=2) as server:
        sessions = {url: await create(url) for url in server.urls}
        for url, session in sessions.items():
            assert (await ask(url, "POST", f"{session}/v1/chat/completions", ASK)).status == 200
        await server.drain()
        for url, session in sessions.items():
            assert server.process.returncode is None
            assert (await ask(url, "POST", f"{session}/v1/chat/completions", ASK)).status == 503
            assert (await ask(url, "POST", f"{session}/samples", {})).status == 200
            assert (await ask(url, "DELETE", session)).status == 204
        assert await server.wait() == -signal.SIGTERM


async def test_a_second_signal_ends_a_group_at_once(tmp_path: Path) -> None:
    async with serving(build_engine(), tmp_path, workers=2) as server:
        for url in server.urls:
            session = await create(url)
            assert (await ask(url, "POST", f"{session}/v1/chat/completions", ASK)).status == 200
        await server.drain()
        told = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert await server.wait() == -signal.SIGTERM
        assert time.monotonic() - told < 5
