"""A session server that is killed at a step of a write, and an agent that knows nothing of it.

1. An OpenAI client retries until the server is there again, and ends its task.
2. Every reply that the client got is a turn of the session, once and no more; the accounting covers every token.
3. Another session is there as it was; one whose deletion was cut off is gone once its client has asked again.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Literal

import openai
import pytest

from turnkeeper.client import Retry, SyncSessionClient
from turnkeeper.errors import SessionNotFoundError
from turnkeeper.store.faults import CrashPoint
from turnkeeper.tiny.checkpoint import shipped_checkpoint

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
TURNS = 4
OPTIONS = (
    "--tito-model",
    "qwen3",
    "--use-session-server",
    "v2",
    "--use-rollout-routing-replay",
    "--on-truncated",
    "bridge",
    "--pause-generation-mode",
    "in_place",
)
PATIENCE = Retry(attempts=100)
SYNC = ("--durability", "sync", "--row-durability", "sync")


@dataclass(frozen=True)
class Death:
    """How a server dies."""

    point: CrashPoint
    count: int
    """For which time it comes to the step: in each case while the second turn is stored, or behind it."""
    options: tuple[str, ...] = ()
    agents: int = 1
    ends: Literal["", "session", "server"] = ""
    """What is ended behind the first reply so that the server comes to the step: another session, or the server."""


DEATHS = (
    Death(CrashPoint.AFTER_COMMIT, 7),
    Death(CrashPoint.GROUP_GATHERED, 7),
    Death(CrashPoint.BEFORE_ROWS, 3),
    Death(CrashPoint.ROWS_HALF_WRITTEN, 3),
    Death(CrashPoint.BETWEEN_PAYLOADS, 3),
    Death(CrashPoint.AFTER_ROWS, 7),
    Death(CrashPoint.AFTER_ROWS_SYNC, 7, options=SYNC),
    Death(CrashPoint.TRANSACTION_BEGUN, 7),
    Death(CrashPoint.BEFORE_INSERT, 7),
    Death(CrashPoint.AFTER_INSERT, 7),
    Death(CrashPoint.BEFORE_COMMIT, 7),
    Death(CrashPoint.HALF_TOLD, 1, agents=3),
    Death(CrashPoint.BEFORE_UNLINK, 1, ends="session"),
    Death(CrashPoint.AFTER_UNLINK, 1, ends="session"),
    Death(CrashPoint.BEFORE_CHECKPOINT, 4),
    Death(CrashPoint.AFTER_CHECKPOINT, 4),
    Death(CrashPoint.BEFORE_CLOSE, 1, ends="server"),
)
"""Every step that there is."""
PLAYED = DEATHS if "CRASH_HISTORIES" in os.environ else DEATHS[:1]
"""The suite plays the first; ``make crashes`` plays all."""


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that says where it is ready, and the address."""
    environ = {**os.environ, "PYTHONPATH": str(SRC)}
    with subprocess.Popen([sys.executable, *command], env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " ready at " in line, line
            yield process, line.strip().split(" ready at ")[1]
        finally:
            process.kill()


def take_port() -> int:
    """A port that was free a moment ago: the second server needs that of the first."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with running("-m", "turnkeeper", "engine", "--port", "0") as (_, url):
        yield url


def test_every_step_is_there() -> None:
    assert {death.point for death in DEATHS} == {*CrashPoint}


@pytest.mark.parametrize("death", PLAYED, ids=lambda death: death.point)
def test_agents_end_their_tasks_though_the_server_is_killed(engine: str, tmp_path: Path, death: Death) -> None:
    options = ["--hf-checkpoint", str(shipped_checkpoint()), "--backend-url", engine, *OPTIONS, *death.options]
    options += ["--session-server-port", str(take_port()), "--store", str(tmp_path)]
    with running(str(HERE / "killed_server.py"), death.point, str(death.count), *options) as (first, url):
        agents = [Agent(url) for _ in range(death.agents)]
        other = SyncSessionClient(url, retry=PATIENCE).create()
        take_turn(other.base_url, [{"role": "user", "content": "What is 1 + 1?"}])
        for agent in agents:
            agent.start()
        deletion = Thread(target=other.delete)
        if death.ends:
            agents[0].has_reply.wait(60)
        if death.ends == "session":
            deletion.start()
        elif death.ends == "server":
            first.terminate()
        assert first.wait(60) == -signal.SIGKILL
    with running("-m", "turnkeeper", "serve", *options) as (_, url):
        for agent in agents:
            agent.join(60)
            check_record(url, agent)
        if death.ends == "session":
            deletion.join(60)
            with pytest.raises(SessionNotFoundError):
                other.samples()
        else:
            assert len(other.samples().session_metadata["turnkeeper"]["turns"]) == 1


def check_record(url: str, agent: "Agent") -> None:
    """Each reply that the agent got is one turn of its session."""
    assert len(agent.replies) == TURNS
    with SyncSessionClient(url) as client:
        batch = client.open(agent.session_id).samples()
    told = batch.session_metadata["turnkeeper"]
    assert [turn["response_id"] for turn in told["turns"]] == agent.replies
    accounting = told["accounting"]
    assert accounting["unaccounted"] == 0
    assert accounting["trainable"] == sum(int(sample.loss_mask.sum()) for sample in batch.samples) > 0


class Agent(Thread):
    """An OpenAI client as it is, which retries as it does; it notes the ids of the replies that it gets."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        session = SyncSessionClient(url).create()
        self.session_id, self._base_url = session.session_id, session.base_url
        self.replies: list[str] = []
        self.has_reply = Event()

    def run(self) -> None:
        messages = [{"role": "user", "content": "What is 2 + 3?"}]
        for number in range(TURNS):
            reply_id, text = take_turn(self._base_url, messages)
            self.replies.append(reply_id)
            self.has_reply.set()
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And {number}?"}]


def take_turn(base_url: str, messages: list[dict[str, str]]) -> tuple[str, str]:
    """Ask, and ask again while nobody answers; the reply's id and text."""
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=30)
    reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=16)  # pyright: ignore
    return reply.id, reply.choices[0].message.content or ""
