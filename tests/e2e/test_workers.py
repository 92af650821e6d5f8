"""Several processes, started the way a trainer does: from a daemonic spawned process, on free ports.

1. Each serves sessions of its own.
2. They end together.
"""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from turnkeeper.tiny.checkpoint import shipped_checkpoint

TRAINER = textwrap.dedent(
    """
    import argparse, multiprocessing, sys
    from turnkeeper.trainer import run_session_server

    if __name__ == "__main__":
        arguments = argparse.Namespace(
            hf_checkpoint=sys.argv[1],
            tito_model="qwen3",
            pause_generation_mode="abort",
            session_server_port=0,
            session_server_workers=2,
        )
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=run_session_server, args=(arguments, "http://127.0.0.1:9"), daemon=True)
        process.start()
        sys.stdin.read()
        process.terminate()
        process.join()
    """
)


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    with subprocess.Popen(
        [sys.executable, str(script), str(shipped_checkpoint())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_processes_serve_side_by_side_and_end_together(trainer: subprocess.Popen[str]) -> None:
    assert trainer.stdout is not None
    urls = {trainer.stdout.readline().split()[-1] for _ in range(2)}
    names = {httpx.get(f"{url}/health").json()["session_server_instance_id"] for url in urls}
    assert len(urls) == len(names) == 2
    first, second = urls
    session_id = httpx.post(f"{first}/sessions").json()["session_id"]
    assert httpx.get(f"{first}/sessions/{session_id}").status_code == 200
    assert httpx.get(f"{second}/sessions/{session_id}").status_code == 404
    rest, _ = trainer.communicate(timeout=60)  # closes its stdin; stdout ends when every process has
    assert (rest, trainer.returncode) == ("", 0)
