"""A session server that is killed at a step of a write, and an agent that knows nothing of it.

1. An OpenAI client retries until the server is there again, and ends its task.
2. Every reply that the client got is a turn of the session, once and no more; the accounting covers every token.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import openai
import pytest

from turnkeeper.client import SyncSessionClient
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
POINTS: dict[CrashPoint, int] = {
    CrashPoint.AFTER_COMMIT: 4,
    CrashPoint.GROUP_GATHERED: 4,
    CrashPoint.BEFORE_ROWS: 2,
    CrashPoint.ROWS_HALF_WRITTEN: 2,
    CrashPoint.BETWEEN_PAYLOADS: 2,
    CrashPoint.AFTER_ROWS: 4,
    CrashPoint.TRANSACTION_BEGUN: 4,
    CrashPoint.BEFORE_INSERT: 4,
    CrashPoint.AFTER_INSERT: 4,
    CrashPoint.BEFORE_COMMIT: 4,
}
"""The steps, and for which time the server dies there: in each case while it stores the second turn or what follows."""
PLAYED = dict(POINTS) if "CRASH_HISTORIES" in os.environ else dict([next(iter(POINTS.items()))])
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


@pytest.mark.parametrize(("point", "count"), PLAYED.items(), ids=map(str, PLAYED))
def test_an_agent_ends_its_task_though_the_server_is_killed(
    engine: str, tmp_path: Path, point: CrashPoint, count: int
) -> None:
    options = ["--hf-checkpoint", str(shipped_checkpoint()), "--backend-url", engine, *OPTIONS]
    options += ["--session-server-port", str(take_port()), "--store", str(tmp_path)]
    replies: list[str] = []
    with running(str(HERE / "killed_server.py"), str(point), str(count), *options) as (first, url):
        session_id = SyncSessionClient(url).create().session_id
        agent = Thread(target=play, args=(f"{url}/sessions/{session_id}/v1", replies))
        agent.start()
        assert first.wait(60) == -signal.SIGKILL
    with running("-m", "turnkeeper", "serve", *options) as (_, url):
        agent.join(60)
        assert len(replies) == TURNS
        with SyncSessionClient(url) as client:
            batch = client.open(session_id).samples()
    told = batch.session_metadata["turnkeeper"]
    assert [turn["response_id"] for turn in told["turns"]] == replies
    accounting = told["accounting"]
    assert accounting["unaccounted"] == 0
    assert accounting["trainable"] == sum(int(sample.loss_mask.sum()) for sample in batch.samples) > 0


def play(base_url: str, replies: list[str]) -> None:
    """The agent: an OpenAI client as it is, which retries as it does; it notes the ids of the replies that it gets."""
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=30)
    messages: list[dict[str, str]] = [{"role": "user", "content": "What is 2 + 3?"}]
    for number in range(TURNS):
        reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=16)  # pyright: ignore
        text = reply.choices[0].message.content or ""
        replies.append(reply.id)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"And {number}?"}]
