"""What happened on a server is told from its log alone.

A real server, as a process, in front of a scripted engine: a fork, a refused request, a pause, a turn that is stuck, an
engine that dies, a session that is deleted, and an abort. Each is read from the JSON lines and nothing else; then what
``GET /sessions``, the session, ``turnkeeper show`` and ``/metrics`` say is held against it.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from servicekit import assistant, get_renderer, user
from turnkeeper.testing.engine import ScriptedEngine, unreachable_url
from turnkeeper.testing.script import ScriptedReply
from turnkeeper.testing.serve import running
from turnkeeper.tiny.checkpoint import shipped_checkpoint

SRC = Path(__file__).parents[2] / "src"
LIMIT_S = 60

Line = dict[str, Any]


@dataclass
class Log:
    """The lines of a server, as they come."""

    source: asyncio.StreamReader
    lines: list[Line] = field(default_factory=list)

    async def wait_for(self, event: str, **keys: object) -> Line:
        """The first line of this event with these values, read or still to come."""
        read = 0
        async with asyncio.timeout(LIMIT_S):
            while True:
                for line in self.lines[read:]:
                    if line["event"] == event and all(line.get(name) == value for name, value in keys.items()):
                        return line
                read = len(self.lines)
                await self.read()

    async def read(self) -> bool:
        """Read one more line; False at the end."""
        text = await self.source.readline()
        if text:
            self.lines.append(json.loads(text))
        return bool(text)

    async def read_rest(self) -> None:
        """Read to the end."""
        while await self.read():
            pass

    def select(self, event: str, **keys: object) -> list[Line]:
        return [
            line
            for line in self.lines
            if line["event"] == event and all(line.get(name) == value for name, value in keys.items())
        ]


@dataclass
class Server:
    """A server as a process, and a client of it."""

    process: asyncio.subprocess.Process
    log: Log
    http: httpx.AsyncClient

    async def create(self) -> str:
        return str((await self.http.post("/sessions")).json()["session_id"])

    async def say(self, session_id: str, *messages: Any) -> httpx.Response:
        return await self.http.post(f"/sessions/{session_id}/v1/chat/completions", json={"messages": list(messages)})

    async def read_metrics(self) -> dict[str, float]:
        text = (await self.http.get("/metrics")).text
        return {
            name: float(value)
            for line in text.splitlines()
            if line[0] != "#"
            for name, _, value in [line.rpartition(" ")]
        }

    async def show(self, session_id: str) -> Line:
        """What ``turnkeeper show`` says of a session."""
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "turnkeeper", "show", str(self.http.base_url).rstrip("/"), session_id, "--json"],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await process.communicate()
        return json.loads(said)

    async def list_waiting(self) -> dict[str, Line]:
        """The turn in flight of each session that has one, as the list of sessions has it."""
        rows = (await self.http.get("/sessions")).json()["sessions"]
        return {row["session_id"]: row["in_flight_turns"][0] for row in rows if row["in_flight"]}


@asynccontextmanager
async def serving(engine_url: str, *flags: str) -> AsyncGenerator[Server]:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "turnkeeper", "serve", "--backend-url", engine_url],
        *["--hf-checkpoint", str(shipped_checkpoint()), "--tito-model", "qwen3", "--session-server-port", "0"],
        *flags,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            url = (await process.stdout.readline()).decode().split()[-1]
        async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as http:
            yield Server(process=process, log=Log(process.stderr), http=http)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_everything_that_happened_is_told_from_the_log() -> None:
    encode: Callable[[str], list[int]] = lambda text: get_renderer().tokenizer.encode(text).tolist()  # noqa: E731
    engine = ScriptedEngine(encode=encode)
    flags = ["--log-format", "json", "--slow-turn", "0.4", "--probe-interval", "0.2", "--drain-timeout", "0"]
    flags += ["--use-session-server", "v2"]
    async with AsyncExitStack() as alive, AsyncExitStack() as stack:
        engine_url = await alive.enter_async_context(running(engine, drain_s=1))
        server = await stack.enter_async_context(serving(engine_url, *flags))
        log = server.log
        started = await log.wait_for("server_started")
        assert (started["history"], started["engines"], started["store"]) == ("tree", [engine_url], "memory")
        assert started["options"]["slow-turn"] == "0.4"
        assert (await log.wait_for("engine_changed"))["state"] == "serving"

        # A fork, and a refusal.
        forked = await server.create()
        said = (await server.say(forked, user("a"))).json()["choices"][0]["message"]["content"]
        await server.say(forked, user("a"), assistant(said), user("b"))
        await server.say(forked, user("a"), assistant("something else"), user("b"))
        refused = await server.say(forked, user("a"), assistant(said))
        assert refused.status_code == 400
        refusal = await log.wait_for("request_failed")
        assert (refusal["session"], refusal["code"]) == (forked, "assistant_last")
        assert refusal["request"] == refused.headers["x-request-id"]
        ends = log.select("turn_ended", session=forked)
        assert [(line["turn"], line.get("parent"), line["label"], line["cause"]) for line in ends] == [
            (0, None, "root", "first"),
            (1, 0, "extension", "none"),
            (2, None, "root", "reply_rewritten"),
        ]

        # A pause, in which a turn waits at the gate.
        await server.http.post("/engine/pause", json={"mode": "retract"})
        assert (await log.wait_for("pause_changed", is_paused=True))["mode"] == "retract"
        paused = await server.create()
        waiting = asyncio.create_task(server.say(paused, user("a")))
        told = await log.wait_for("turn_delayed", session=paused)
        assert told["phase"] == "gate"
        shown = await server.list_waiting()
        assert {name: shown[paused][name] for name in ("number", "phase")} == {"number": 0, "phase": "gate"}
        await server.http.post("/engine/continue", json={})
        assert (await waiting).status_code == 200
        over = await log.wait_for("pause_changed", is_paused=False)
        gone_on = await log.wait_for("turn_ended", session=paused)
        assert 0.4 < gone_on["gate_s"] <= over["seconds"] + 1
        assert gone_on["end"] == "recorded"

        # A turn that is stuck at an engine, which then dies.
        engine.script.append(ScriptedReply(wait=asyncio.Event()))
        stuck = await server.create()
        hanging = asyncio.create_task(server.say(stuck, user("a")))
        told = await log.wait_for("turn_delayed", session=stuck)
        shown = (await server.list_waiting())[stuck]
        assert (told["phase"], told["engine"], told["number"]) == (shown["phase"], shown["engine"], shown["number"])
        assert (told["phase"], told["engine"]) == ("engine", engine_url)
        assert shown["age_s"] >= told["age_s"]
        await alive.aclose()
        assert (await hanging).status_code == 502
        failed = await log.wait_for("turn_ended", session=stuck)
        assert (failed["end"], failed["code"]) == ("failed", "engine")
        assert failed["facts"]["url"].startswith(engine_url)
        assert (await log.wait_for("engine_changed", state="unreachable"))["engine"] == engine_url
        dead = await server.say(stuck, user("a"))
        assert dead.status_code == 502
        last = await log.wait_for("request_failed", request=dead.headers["x-request-id"])
        assert (last["session"], last["because"][0]) == (stuck, "ClientConnectorError: Connection refused")

        # Requests that no route takes.
        assert (await server.http.get("/nowhere")).status_code == 404
        assert (await server.http.patch("/sessions")).status_code == 405
        await log.wait_for("request_failed", code="method_not_allowed")

        # The server agrees.
        metrics = await server.read_metrics()
        records = (await server.http.get(f"/sessions/{forked}")).json()["metadata"]
        check_metrics(log, metrics)
        nodes = records["tree"]["nodes"]
        assert [(node["id"], node["parent"]) for node in nodes] == [(line["turn"], line.get("parent")) for line in ends]
        assert [turn["label"] for turn in records["turnkeeper"]["turns"]] == [line["label"] for line in ends]
        check_shown(await server.show(forked), ends)
        assert await server.list_waiting() == {}

        # What is deleted is told by its totals.
        await server.http.post(f"/sessions/{forked}/samples")
        assert (await server.http.delete(f"/sessions/{forked}")).status_code == 204
        ended = await log.wait_for("session_ended", session=forked)
        collected = log.select("samples_collected", session=forked)
        assert len(collected) == 1
        assert (ended["turns"], ended["reason"], ended["uncollected_tokens"]) == (3, "deleted", 0)
        assert ended["sampled_tokens"] == sum(line["sampled_tokens"] for line in ends)

        # So is an abort, and what it closed.
        await server.http.post("/engine/abort")
        assert (await log.wait_for("turns_aborted"))["sessions"] == 2
        for session_id in (paused, stuck):
            closed = await log.wait_for("session_closed", session=session_id)
            shown_as = (await server.show(session_id))["closed"]
            assert closed["reason"] == shown_as == "all turns were aborted"
        await server.http.post("/engine/abort")

        server.process.terminate()
        await log.read_rest()
    assert len(log.select("session_closed")) == 2
    left = {line["session"]: line["reason"] for line in log.select("session_ended") if line["session"] != forked}
    assert left == dict.fromkeys((paused, stuck), "the server is stopping")


def check_shown(session: Line, ends: list[Line]) -> None:
    """Hold what ``turnkeeper show`` says of a session's turns against the lines of their ends."""
    keys = ("parent", "label", "prompt_tokens", "cached_tokens", "finish_reason", "engine")
    assert [{key: turn[key] for key in keys} for turn in session["turns"]] == [
        {key: line.get(key) for key in keys} for line in ends
    ]
    for turn, line in zip(session["turns"], ends, strict=True):
        assert (turn["id"], turn["completion_tokens"]) == (line["turn"], line["sampled_tokens"])
        assert (turn["cause"] or "none") == line["cause"]
        for phase in ("gate_s", "engine_s", "held_s"):
            assert abs(turn["times"][phase] - line[phase]) < 1e-5


def check_metrics(log: Log, metrics: dict[str, float]) -> None:
    """Hold the counters of a server against its log."""
    for label, cause in (("root", "first"), ("extension", "none"), ("root", "reply_rewritten")):
        counted = metrics[f'turnkeeper_turn_labels_total{{cause="{cause}",label="{label}"}}']
        assert counted == len(log.select("turn_ended", label=label, cause=cause)), (label, cause)
    for end in ("recorded", "failed", "abandoned"):
        assert metrics[f'turnkeeper_turns_ended_total{{end="{end}"}}'] == len(log.select("turn_ended", end=end))
    counted = {
        name.split('"')[1]: value for name, value in metrics.items() if name.startswith("turnkeeper_errors_total{")
    }
    assert {code: value for code, value in counted.items() if value} == Counter(
        line["code"] for line in log.select("request_failed")
    )
    assert set(counted) >= {"assistant_last", "engine", "route_not_served", "method_not_allowed"}
    pauses = log.select("pause_changed", is_paused=False)
    assert metrics['turnkeeper_pause_seconds_count{mode="retract"}'] == len(pauses)
    (url,) = log.select("server_started")[0]["engines"]
    assert metrics[f'turnkeeper_engine_status{{engine="{url}",state="unreachable"}}'] == 1
    sampled = sum(line.get("sampled_tokens") or 0 for line in log.select("turn_ended", end="recorded"))
    assert metrics["turnkeeper_tokens_sampled_total"] == sampled


async def test_every_line_of_several_processes_is_of_one_form() -> None:
    """Standard error holds nothing but the log: the processes' lines, each whole, and those of the one that started
    them."""
    with unreachable_url() as nowhere:
        flags = ["--log-format", "json", "--session-server-workers", "2", "--access-log", "--drain-timeout", "0"]
        async with serving(nowhere, *flags) as server:
            for worker in range(2):
                await server.log.wait_for("server_started", worker=worker)
            await server.http.get("/health")
            for line in server.log.select("server_started"):
                command = [sys.executable, "-m", "turnkeeper", "sessions", line["url"], "--json"]
                listed = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
                elsewhere = json.loads((await listed.communicate())[0])["elsewhere"]
                assert (elsewhere["worker"], elsewhere["workers"]) == (line["worker"], 2)
            server.process.terminate()
            await server.log.read_rest()
    log = server.log
    assert all({"time", "level", "event"} <= {*line} for line in log.lines)
    assert [line["worker"] for line in log.select("worker_started")] == [0, 1]
    assert sorted(line["worker"] for line in log.select("worker_ended")) == [0, 1]
    assert log.select("http_request", path="/health")[0]["status"] == 200
    assert {line["engine"] for line in log.select("engine_changed", state="unreachable")} == {nowhere}
