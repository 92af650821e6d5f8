"""A run of the demo is told from the log of its server alone.

The demo's own engines, server, agents and weight update, as processes, and five things that go wrong or need an
explanation: an agent that edits its history, a request that is refused, the pause of the update, a turn that is stuck
at its engine, and that engine's death. Each is read from the JSON lines and nothing else, and held against what the
parties did, and against what ``GET /sessions``, ``turnkeeper show`` and ``/metrics`` say.

The second engine stands behind a proxy, whose connections the test stalls and cuts.
"""

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from turnkeeper.choices import PauseMode
from turnkeeper.cli.main import app
from turnkeeper.client import SessionClient
from turnkeeper.demo.agent import MAX_TURNS, RolloutOutcome, play_task
from turnkeeper.demo.stack import Stack, running_engines, running_server
from turnkeeper.demo.tasks import held_out_tasks
from turnkeeper.demo.trainer import NEW_VERSION, DemoTrainer
from turnkeeper.fleet.pool import rank_engines
from turnkeeper.tiny.checkpoint import derive_weights, read_weights, write_checkpoint

LIMIT_S = 60
TASKS = 4

FIRST_VERSION = "default"
"""What the embedded engine calls the weights that it starts with."""

Line = dict[str, Any]


class EngineProxy:
    """Passes connections on to an engine until it is told not to."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.removeprefix("http://").partition(":")
        self._port = int(port)
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stall(self) -> None:
        """Take what comes, and pass on no answer."""
        self._passes.clear()

    async def die(self) -> None:
        """Cut every connection, and take no new one."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, behind_writer}
        try:
            await asyncio.gather(
                self._pump(reader, behind_writer, is_answer=False), self._pump(behind_reader, writer, is_answer=True)
            )
        except OSError:
            pass  # one side has hung up
        finally:
            writer.close()
            behind_writer.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool) -> None:
        while data := await source.read(65536):
            if is_answer:
                await self._passes.wait()
            sink.write(data)
            await sink.drain()
        sink.close()


@asynccontextmanager
async def proxying(target: str) -> AsyncGenerator[EngineProxy]:
    proxy = EngineProxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.die()


@dataclass(frozen=True)
class Party:
    """The running demo, and what is asked of it."""

    http: httpx.AsyncClient
    agent: openai.AsyncOpenAI
    sessions: SessionClient
    log: Path

    def read_log(self) -> list[Line]:
        """The whole lines that are written so far."""
        return [json.loads(text) for text in self.log.read_text().splitlines(keepends=True) if text.endswith("\n")]

    async def wait_for(self, event: str, **keys: object) -> Line:
        """The first line of this event with these values."""
        async with asyncio.timeout(LIMIT_S):
            while not (found := select(self.read_log(), event, **keys)):  # noqa: ASYNC110 - a file sends no event
                await asyncio.sleep(0.05)
        return found[0]

    def at(self, session_id: str) -> openai.AsyncOpenAI:
        """The agents' client, for one session."""
        return self.agent.with_options(base_url=f"{str(self.http.base_url).rstrip('/')}/sessions/{session_id}/v1")

    async def say(self, session_id: str, *messages: dict[str, str]) -> str:
        reply = await self.at(session_id).chat.completions.create(
            model="policy",
            messages=messages,  # type: ignore[arg-type] - plain dicts, as agents send them
            max_tokens=16,
        )
        return reply.choices[0].message.content or ""

    async def show(self, session_id: str) -> Line:
        """What ``turnkeeper show`` says of a session."""
        words = ["show", str(self.http.base_url).rstrip("/"), session_id, "--json"]
        return json.loads((await asyncio.to_thread(CliRunner().invoke, app, words)).stdout)


def select(lines: Iterable[Line], event: str, **keys: object) -> list[Line]:
    return [
        line
        for line in lines
        if line["event"] == event and all(line.get(name) == value for name, value in keys.items())
    ]


# The run.


@dataclass(frozen=True)
class Played:
    """What the parties of the run know of it."""

    engines: tuple[str, str]
    outcomes: list[RolloutOutcome]
    forked: str
    refused_request: str
    stuck: str
    shown_stuck: Line
    """The turn that was stuck, as ``GET /sessions`` had it."""
    paused_s: float
    rows: dict[str, Line]
    """``GET /sessions`` at the end, by session."""
    shown: dict[str, Line]
    """What ``turnkeeper show`` says at the end, by session."""
    metrics: dict[str, float]
    lines: list[Line]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return asyncio.run(play(tmp_path_factory.mktemp("told")))


async def play(folder: Path) -> Played:
    first, second = folder / "checkpoint-1", folder / "checkpoint-2"
    write_checkpoint(first)
    write_checkpoint(second, weights=derive_weights(read_weights(first).weights, seed=1))
    options = ["--log-format", "json", "--slow-turn", "0.3", "--probe-interval", "0.2", "--use-session-server", "v2"]
    log = folder / "server.log"
    async with (
        running_engines(folder, checkpoint=first) as urls,
        proxying(urls[1]) as proxy,
        running_server(log, (urls[0], proxy.url), mode=PauseMode.IN_PLACE, checkpoint=first, options=options) as server,
        httpx.AsyncClient(base_url=server.url, timeout=LIMIT_S) as http,
        openai.AsyncOpenAI(api_key="unused", timeout=LIMIT_S, max_retries=0) as agent,
        SessionClient(server.url) as sessions,
    ):
        party = Party(http, agent, sessions, log)
        engines = (urls[0], proxy.url)
        await party.wait_for("engine_changed", engine=proxy.url, state="serving")
        outcomes, paused_s = await play_tasks(party, Stack(server_url=server.url, engine_urls=engines), second)
        forked = await fork(party)
        refused = await be_refused(party, forked)
        stuck, shown_stuck = await lose_engine(party, proxy, engines)
        rows = (await http.get("/sessions")).json()["sessions"]
        shown = {row["session_id"]: await party.show(row["session_id"]) for row in rows}
        metrics = read_metrics((await http.get("/metrics")).text)
    return Played(
        engines=engines,
        outcomes=outcomes,
        forked=forked,
        refused_request=refused,
        stuck=stuck,
        shown_stuck=shown_stuck,
        paused_s=paused_s,
        rows={row["session_id"]: row for row in rows},
        shown=shown,
        metrics=metrics,
        lines=party.read_log(),
    )


async def play_tasks(party: Party, stack: Stack, checkpoint: Path) -> tuple[list[RolloutOutcome], float]:
    """The demo's tasks, with its weight update while they are played."""
    trainer = DemoTrainer(stack, PauseMode.IN_PLACE, checkpoint, rollouts=TASKS)
    outcomes: list[RolloutOutcome] = []

    async def play_one(task: Any) -> None:
        session = await party.sessions.create()
        client = party.at(session.session_id)
        outcomes.append(await play_task(client, task, rollout=0, session_id=session.session_id))
        trainer.note_progress(len(outcomes) / TASKS)

    async with asyncio.TaskGroup() as group:
        update = group.create_task(trainer.update_once(asyncio.Lock()))
        for task in held_out_tasks(TASKS, 0):
            group.create_task(play_one(task))
    return outcomes, update.result().paused_s


async def fork(party: Party) -> str:
    """An agent that edits what the model said."""
    session = (await party.sessions.create()).session_id
    question = {"role": "user", "content": "What is 2 + 3?"}
    await party.say(session, question)
    edited = {"role": "assistant", "content": "The agent's own words."}
    await party.say(session, question, edited, {"role": "user", "content": "And 3 + 4?"})
    return session


async def be_refused(party: Party, session: str) -> str:
    """A request that asks nothing; the id of the request."""
    with pytest.raises(openai.BadRequestError) as raised:
        await party.say(session, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    return raised.value.response.headers["x-request-id"]


async def lose_engine(party: Party, proxy: EngineProxy, engines: tuple[str, str]) -> tuple[str, Line]:
    """A turn that is stuck at its engine, which then dies; the session goes on at the other engine."""
    drawn = (secrets.token_hex(16) for _ in range(1000))
    mine = next(each for each in drawn if rank_engines(each, engines)[0] == proxy.url)
    await party.sessions.create(session_id=mine)
    proxy.stall()
    question = {"role": "user", "content": "What is 5 + 6?"}
    hanging = asyncio.create_task(party.say(mine, question))
    await party.wait_for("turn_delayed", session=mine)
    (row,) = (await party.http.get("/sessions?phase=engine&order=in_flight")).json()["sessions"]
    await proxy.die()
    with pytest.raises(openai.InternalServerError, match="502"):
        await hanging
    await party.wait_for("engine_changed", engine=proxy.url, state="unreachable")
    await party.say(mine, question)
    return row["session_id"], row["in_flight_turns"][0]


def read_metrics(text: str) -> dict[str, float]:
    pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


# What the log says.


def tell_turns(lines: list[Line], session: str) -> list[tuple[Any, ...]]:
    """The recorded turns of a session: place, parent, label, cause, engine, weights, tokens."""
    return [
        (line["turn"], line.get("parent"), line["label"], line["cause"], line["engine"], line["weight_version"])
        for line in select(lines, "turn_ended", session=session, end="recorded")
    ]


def test_the_rollouts_are_told_turn_by_turn(played: Played) -> None:
    for outcome in played.outcomes:
        turns = tell_turns(played.lines, outcome.session_id)
        assert len(turns) == outcome.turns <= MAX_TURNS
        assert [turn[:4] for turn in turns] == [
            (place, place - 1 if place else None, *(("extension", "none") if place else ("root", "first")))
            for place in range(outcome.turns)
        ]
        assert len({turn[4] for turn in turns}) == 1, "a session keeps its engine"
        assert {turn[4] for turn in turns} <= {*played.engines}


def test_the_update_is_told_by_its_pause_and_its_versions(played: Played) -> None:
    paused, over = select(played.lines, "pause_changed")
    assert (paused["is_paused"], paused["mode"], over["is_paused"]) == (True, "in_place", False)
    assert over["seconds"] == pytest.approx(played.paused_s, abs=1.0)
    changed = [line for line in select(played.lines, "engine_changed") if line.get("weight_version") == NEW_VERSION]
    assert {line["engine"] for line in changed if line["state"] != "unreachable"} == {*played.engines}
    versions = [line["weight_version"] for line in select(played.lines, "turn_ended", end="recorded")]
    assert NEW_VERSION in versions
    assert {*versions} <= {FIRST_VERSION, NEW_VERSION}


def test_the_fork_is_told_by_its_cause(played: Played) -> None:
    assert [turn[:4] for turn in tell_turns(played.lines, played.forked)] == [
        (0, None, "root", "first"),
        (1, None, "root", "reply_rewritten"),
    ]


def test_the_refusal_is_told_by_its_code(played: Played) -> None:
    (refusal,) = [line for line in select(played.lines, "request_failed") if line["status"] < 500]
    assert (refusal["request"], refusal["session"]) == (played.refused_request, played.forked)
    assert (refusal["status"], refusal["code"]) == (400, "assistant_last")


def test_the_stuck_turn_is_told_with_its_engine_and_its_end(played: Played) -> None:
    stuck = select(played.lines, "turn_delayed")[-1]
    shown = played.shown_stuck
    assert (stuck["session"], stuck["phase"], stuck["engine"]) == (played.stuck, "engine", played.engines[1])
    assert (shown["phase"], shown["engine"], shown["number"]) == ("engine", played.engines[1], stuck["number"])
    (failed,) = select(played.lines, "turn_ended", session=played.stuck, end="failed")
    assert (failed["number"], failed["code"]) == (stuck["number"], "engine")
    assert failed["total_s"] >= stuck["age_s"]


def test_the_death_is_told_and_what_went_on_after_it(played: Played) -> None:
    states = [line["state"] for line in select(played.lines, "engine_changed", engine=played.engines[1])]
    assert (states[0], states[-1]) == ("serving", "unreachable")
    assert "unreachable" not in {
        line["state"] for line in select(played.lines, "engine_changed", engine=played.engines[0])
    }
    assert tell_turns(played.lines, played.stuck) == [(0, None, "root", "first", played.engines[0], NEW_VERSION)]


# What else says it.


def test_the_list_of_sessions_agrees(played: Played) -> None:
    began = {line["session"] for line in select(played.lines, "session_began")}
    assert {*played.rows} == began
    for session, row in played.rows.items():
        assert (row["turns"], row["in_flight"], row["state"]) == (len(tell_turns(played.lines, session)), 0, "open")
        assert row["history"] == select(played.lines, "session_began", session=session)[0]["history"]


def test_show_agrees(played: Played) -> None:
    for session, shown in played.shown.items():
        ends = select(played.lines, "turn_ended", session=session, end="recorded")
        keys = ("parent", "label", "prompt_tokens", "cached_tokens", "finish_reason", "engine")
        assert [{key: turn[key] for key in keys} for turn in shown["turns"]] == [
            {key: line.get(key) for key in keys} for line in ends
        ]
        for turn, line in zip(shown["turns"], ends, strict=True):
            assert (turn["completion_tokens"], turn["cause"] or "none") == (line["sampled_tokens"], line["cause"])
            assert {phase: round(turn["times"][phase], 4) for phase in ("gate_s", "engine_s", "held_s")} == {
                phase: round(line[phase], 4) for phase in ("gate_s", "engine_s", "held_s")
            }


def test_the_metrics_agree(played: Played) -> None:
    ended = select(played.lines, "turn_ended")
    for end in ("recorded", "failed", "abandoned"):
        assert played.metrics[f'turnkeeper_turns_ended_total{{end="{end}"}}'] == Counter(e["end"] for e in ended)[end]
    labels = Counter((line["label"], line["cause"]) for line in ended if line["end"] == "recorded")
    for (label, cause), number in labels.items():
        assert played.metrics[f'turnkeeper_turn_labels_total{{cause="{cause}",label="{label}"}}'] == number
    recorded = [line for line in ended if line["end"] == "recorded"]
    for name, key in (("sampled", "sampled_tokens"), ("prompt", "prompt_tokens"), ("cached", "cached_tokens")):
        metric = {"sampled": "turnkeeper_tokens_sampled_total"}.get(name, f"turnkeeper_{name}_tokens_total")
        assert played.metrics[metric] == sum(line[key] for line in recorded), name
    codes = Counter(line["code"] for line in select(played.lines, "request_failed"))
    counted = {name.split('"')[1]: value for name, value in played.metrics.items() if "turnkeeper_errors_t" in name}
    assert {code: value for code, value in counted.items() if value} == codes
    assert played.metrics['turnkeeper_pause_seconds_count{mode="in_place"}'] == 1
    assert played.metrics["turnkeeper_sessions_created_total"] == len(select(played.lines, "session_began"))
    for engine, state in zip(played.engines, ("serving", "unreachable"), strict=True):
        assert played.metrics[f'turnkeeper_engine_status{{engine="{engine}",state="{state}"}}'] == 1
    answered = Counter(line["engine"] for line in recorded)
    for engine in played.engines:
        series = f'turnkeeper_engine_calls_total{{engine="{engine}",outcome="answered"}}'
        assert played.metrics[series] == answered[engine]


def test_the_end_is_told_by_the_totals_of_each_session(played: Played) -> None:
    ended = {line["session"]: line for line in select(played.lines, "session_ended")}
    assert {*ended} == {*played.rows}
    for session, line in ended.items():
        turns = select(played.lines, "turn_ended", session=session, end="recorded")
        assert (line["reason"], line["turns"]) == ("the server is stopping", len(turns))
        assert line["sampled_tokens"] == line["uncollected_tokens"] == sum(turn["sampled_tokens"] for turn in turns)
