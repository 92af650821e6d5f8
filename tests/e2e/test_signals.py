"""``turnkeeper serve`` and signals, as processes.

1. Ctrl-C (SIGINT) and SIGTERM end it by that signal, which a shell shows as 130 and 143, with one process and with
   several, while it starts and while it serves. A second one ends it at once. Nothing of it leaves a traceback.
2. A worker that is killed is named with its signal, the others end, and the status is that of the killed one.
"""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnkeeper.testing.engine import unreachable_url
from turnkeeper.tiny.checkpoint import shipped_checkpoint

SOURCE = str(Path(__file__).parents[2] / "src")
HOLD = 'import os, sys; os.write(1, b"starting\\n"); os.read(0, 1)\n'
"""What the server imports in place of its HTTP application to be held while it starts."""


@contextmanager
def starting(workers: int, *, path: str = SOURCE) -> Generator[subprocess.Popen[str]]:
    with unreachable_url() as engine:
        options = ["--hf-checkpoint", str(shipped_checkpoint()), "--backend-url", engine, "--tito-model", "qwen3"]
        options += ["--session-server-port", "0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "turnkeeper", "serve", *options, "--session-server-workers", str(workers)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def read_urls(process: subprocess.Popen[str], workers: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().split()[-1] for _ in range(workers)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_server_ends_by_the_signal_that_it_gets(workers: int, signals: list[signal.Signals]) -> None:
    with starting(workers) as process:
        read_urls(process, workers)
        for number in signals:
            process.send_signal(number)
        rest, said = process.communicate(timeout=60)
    assert (rest, process.returncode) == ("", -signals[0])
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_starts_ends_by_the_signal(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text(HOLD)  # found first: the server waits there while it imports
    with starting(1, path=f"{tmp_path}{os.pathsep}{SOURCE}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(number)
        rest, said = process.communicate(timeout=60)
    assert (rest, said, process.returncode) == ("", "", -number)


def test_a_killed_worker_is_named_and_ends_the_others() -> None:
    with starting(2) as process:
        urls = read_urls(process, 2)
        (victim, *_) = sorted(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
        assert all(urllib.request.urlopen(f"{url}/health").status == 200 for url in urls)
        os.kill(victim, signal.SIGKILL)
        rest, said = process.communicate(timeout=60)
    assert (rest, process.returncode) == ("", 128 + signal.SIGKILL)
    (ended,) = [line for line in said.splitlines() if f"pid={victim}" in line and "worker_ended" in line]
    assert "signal=SIGKILL" in ended
    assert "Traceback" not in said
