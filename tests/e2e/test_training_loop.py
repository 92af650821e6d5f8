"""The training loop of the guide, as it is printed there: two processes, two workers of a server, the embedded engine.

1. What one process opens the other collects, with its reward, at whichever worker the session lives.
2. Nothing stays behind.
3. Each program fits a screen.
"""

import asyncio
import os
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from turnkeeper.client import SessionClient
from turnkeeper.server.command import running_command
from turnkeeper.tiny.checkpoint import shipped_checkpoint

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "training-loop.md").read_text(encoding="utf-8")
PROGRAMS: dict[str, str] = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL))
SAID = re.compile(r"<PaddedSamples: 2 samples of \d+ tokens> trained tokens: (\d+) rewards: \[([\d.]+), ([\d.]+)\]")


def test_each_program_fits_a_screen() -> None:
    assert set(PROGRAMS) == {"rollout.py", "trainer.py"}
    for code in PROGRAMS.values():
        assert len([line for line in code.splitlines() if line.strip()]) <= 22


async def test_one_process_opens_and_the_other_collects(tmp_path: Path) -> None:
    for name, code in PROGRAMS.items():
        (tmp_path / name).write_text(code)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(running_command(["engine", "--port", "0"]))
        serve = [
            *("serve", "--hf-checkpoint", str(shipped_checkpoint()), "--tito-model", "qwen3"),
            *("--backend-url", engine.url, "--session-server-port", "0"),
        ]
        workers = [(await stack.enter_async_context(running_command(serve))).url for _ in range(2)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SERVERS": " ".join(workers)}
        shell = f"{sys.executable} rollout.py | {sys.executable} trainer.py"
        process = await asyncio.create_subprocess_shell(
            shell, cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout=60)
        steps = [SAID.fullmatch(line) for line in out.decode().splitlines()]
        assert (process.returncode, len(steps)) == (0, 2), err.decode()
        assert all(step and int(step[1]) > 0 for step in steps), out.decode()
        assert {reward for step in steps if step for reward in step.groups()[1:]} <= {"0.0", "1.0"}
        assert [row async for row in SessionClient(workers).sessions()] == []
