"""Several processes, started the way a trainer does: from a daemonic spawned process, on free ports.

1. Each serves sessions of its own.
2. They end together.
3. All of them know the admin's keys; the key of a session opens it where it lives, and is unknown to the others.
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
            api_key=sys.argv[2:],
        )
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=run_session_server, args=(arguments, "http://127.0.0.1:9"), daemon=True)
        process.start()
        sys.stdin.read()
        process.terminate()
        process.join()
    """
)


@pytest.fixture(params=[()])
def trainer(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[str]]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    with subprocess.Popen(
        [sys.executable, str(script), str(shipped_checkpoint()), *request.param],
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


@pytest.mark.parametrize("trainer", [("k1", "k2")], indirect=True)
def test_the_key_of_a_session_opens_it_where_it_lives(trainer: subprocess.Popen[str]) -> None:
    assert trainer.stdout is not None
    urls = [trainer.stdout.readline().split()[-1] for _ in range(2)]
    made = {
        url: httpx.post(f"{url}/sessions", json={"scopes": ["read"]}, headers={"x-api-key": key}).json()
        for url, key in zip(urls, ("k1", "k2"), strict=True)
    }
    for home, created in made.items():
        for url in urls:
            for key, status in (("k2", 200 if url == home else 404), (created["key"], 200 if url == home else 401)):
                got = httpx.get(f"{url}/sessions/{created['session_id']}", headers={"authorization": f"Bearer {key}"})
                assert got.status_code == status
            models = httpx.get(f"{url}/v1/models", headers={"x-api-key": created["key"]})
            assert models.status_code == (200 if url == home else 401)
    trainer.communicate(timeout=60)
