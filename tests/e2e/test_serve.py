"""``turnkeeper serve`` as a process.

1. It prints one line once it serves, on a free port where it is asked to; a signal ends it in good order.
2. What cannot work ends it with 2 and names the option.
"""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from turnkeeper.testing import unreachable_url
from turnkeeper.tiny.checkpoint import shipped_checkpoint

SRC = Path(__file__).parents[2] / "src"


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "turnkeeper", "serve", *arguments],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_says_when_it_serves_and_ends_on_a_signal() -> None:
    with unreachable_url() as engine:
        options = ["--hf-checkpoint", str(shipped_checkpoint()), "--backend-url", engine, "--tito-model", "qwen3"]
        with start(*options, "--session-server-port", "0") as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready = re.fullmatch(r"turnkeeper session server ready at (http://127\.0\.0\.1:\d+)\n", line)
            assert ready, line
            with urllib.request.urlopen(f"{ready[1]}/health") as response:
                assert response.status == 200
                assert response.headers.get_all("server") == ["uvicorn"]
                assert len(response.headers.get_all("date") or []) == 1
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=20)
            assert rest == ""
            assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("files", "option"), [({}, "--hf-checkpoint"), ({"tokenizer.json": None}, "--chat-template-path")]
)
def test_a_folder_that_cannot_work_ends_it_and_names_the_option(
    files: dict[str, None], option: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_bytes((shipped_checkpoint() / name).read_bytes())
        (tmp_path / "tokenizer_config.json").write_text("{}")
    with start("--hf-checkpoint", str(tmp_path), "--backend-url", "http://127.0.0.1:9") as process:
        _, said = process.communicate(timeout=20)
    assert process.returncode == 2
    assert option in said
    assert "Traceback" not in said
