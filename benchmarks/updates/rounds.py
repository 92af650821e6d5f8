"""One round: agents play, and in the middle of it the weights are updated; then everything that each party says.

Engines stay up over all rounds, so the weights go back and forth between two checkpoints under ever new labels. In
every second round the session server is not told of the update and has to see it at the engines. Of two rounds in a
row one is cool and one hot, of four each in either way.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from openai import AsyncOpenAI

from benchmarks.updates.case import COOL, HOT, Case, Sampling
from benchmarks.updates.play import Rollout, play_tasks
from turnkeeper.choices import HistoryKind
from turnkeeper.client import SessionClient
from turnkeeper.demo.evidence import CollectedSession, EngineCall, parse_call
from turnkeeper.demo.tasks import held_out_tasks
from turnkeeper.demo.trainer import wait_until_busy
from turnkeeper.engines import EngineClient
from turnkeeper.fleet import EngineFleet, UpdateResult
from turnkeeper.fleet.route_check import PROBE_SESSION
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import decode_samples
from turnkeeper.tiny.checkpoint import derive_weights, read_weights, write_checkpoint

SERVER_OPTIONS = ("--on-truncated", "bridge", "--sample-past-truncation", "--use-rollout-sampling-mask")
"""Paths stay whole when a reply meets its token limit, and samples have the masks of their tokens."""

BUSY = 2
"""So many calls are running when an update begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is played in a round."""

    rollouts: int = 12
    concurrency: int = 12
    """More than the engines have places, so that an update finds them generating."""
    tasks: int = 3
    """Of each rollout, two to three turns each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedCall:
    """One request as its engine saw it, with its line of the KV trace."""

    call: EngineCall
    line: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlayedSession:
    """One session at its end."""

    collected: CollectedSession
    records: Sequence[JsonObject]
    rollout: Rollout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """A round's evidence."""

    case: Case
    is_told: bool
    """Whether the session server was told of the update."""
    sampling: Sampling
    update: UpdateResult
    calls: tuple[TracedCall, ...]
    sessions: tuple[PlayedSession, ...]


class TraceReader:
    """Reads an engine's KV trace as it grows."""

    def __init__(self, path: Path) -> None:
        """Begin at the start of the file."""
        self._path = path
        self._offset = 0

    def read(self) -> Iterator[TracedCall]:
        """What was added since the last time, less the session server's own probes."""
        with self._path.open("rb") as lines:
            lines.seek(self._offset)
            for line in lines:
                self._offset += len(line)
                value = orjson.loads(line)
                if value["routing_key"] != PROBE_SESSION:
                    yield TracedCall(call=parse_call(value), line=value)


@dataclass(slots=True, kw_only=True)
class Stage:
    """The running engines, and how far their weights have come."""

    engine_urls: tuple[str, ...]
    checkpoints: tuple[Path, Path]
    """The engines start with the first."""
    traces: tuple[TraceReader, ...]
    updates: int = 0

    async def update(self, case: Case, session_servers: Sequence[str]) -> UpdateResult:
        """Update all engines to the other checkpoint, under a new label."""
        self.updates += 1
        client = EngineClient()
        try:
            await wait_until_busy(client, self.engine_urls, BUSY)
            fleet = EngineFleet(self.engine_urls, client=client, mode=case.mode, session_servers=session_servers)
            return await fleet.update_from_disk(str(self.checkpoints[self.updates % 2]), str(self.updates))
        finally:
            await client.close()


def write_checkpoints(folder: Path) -> tuple[Path, Path]:
    """The shipped weights, and others derived from them."""
    first, second = folder / "checkpoint-1", folder / "checkpoint-2"
    write_checkpoint(first)
    write_checkpoint(second, weights=derive_weights(read_weights(first).weights, seed=1))
    return first, second


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Sets off the update in the middle of the round."""

    due_turns: int
    turns: int = 0
    is_due: asyncio.Event = field(default_factory=asyncio.Event)

    def note_reply(self) -> None:
        self.turns += 1
        if self.turns >= self.due_turns:
            self.is_due.set()


async def play_round(stage: Stage, case: Case, server_url: str, *, number: int, load: Load) -> Round:
    """Play a round.

    Args:
        stage: the engines.
        case: what is compared.
        server_url: the session server, started for the case.
        number: of the round; odd ones do not tell the session server of the update.
        load: how much is played.

    Raises:
        TurnkeeperError: an engine refused the update.
    """
    is_told = number % 2 == 0
    sampling = (COOL, HOT)[(number + 1) // 2 % 2]
    progress = _Progress(due_turns=load.rollouts * load.tasks)
    places = asyncio.Semaphore(load.concurrency)
    client = SessionClient(server_url)
    # A retry by the SDK would hide what the server answers, so the client makes none.
    async with AsyncOpenAI(api_key="unused", timeout=300.0, max_retries=0) as openai, asyncio.TaskGroup() as group:

        async def play(index: int) -> PlayedSession:
            tasks = held_out_tasks(load.tasks, seed=1000 * number + index)
            kind = HistoryKind.TREE if index % 2 else HistoryKind.LINEAR
            async with places, client.session(history=kind.value) as session:
                rollout = Rollout(session_id=session.session_id, sampling=sampling, on_reply=progress.note_reply)
                await play_tasks(openai.with_options(base_url=session.base_url), tasks, rollout)
                samples = decode_samples(await session.samples_payload()).samples
                info = await session.info()
            collected = CollectedSession(session_id=rollout.session_id, samples=tuple(samples), info=info["metadata"])
            return PlayedSession(collected=collected, records=info["records"], rollout=rollout)

        plays = [group.create_task(play(index)) for index in range(load.rollouts)]
        await progress.is_due.wait()
        update = await stage.update(case, (server_url,) if is_told else ())
    calls = tuple(call for trace in stage.traces for call in trace.read())
    return Round(
        case=case,
        is_told=is_told,
        sampling=sampling,
        update=update,
        calls=calls,
        sessions=tuple(play.result() for play in plays),
    )
