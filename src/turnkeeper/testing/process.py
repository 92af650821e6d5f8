"""Start a ``turnkeeper`` command as a process of its own, and learn the URL that it prints when it is ready."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import turnkeeper

READY = " ready at "
"""What stands before the URL in the one line that a server prints when it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A command that serves."""

    url: str
    """Where, without a slash at its end."""

    process: asyncio.subprocess.Process


@asynccontextmanager
async def running_command(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, start_timeout_s: float = 60
) -> AsyncGenerator[ServerProcess]:
    """Run ``turnkeeper ARGUMENTS`` until the block ends.

    Args:
        arguments: of the command; let it take a free port.
        environment: more variables, over those of this process.
        start_timeout_s: how long it may take to be ready.

    Raises:
        RuntimeError: it ended, or printed something else, before it was ready; its error output is in the message.
    """
    source = str(Path(turnkeeper.__file__).parent.parent)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "turnkeeper",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source, **(environment or {})},
    )
    try:
        yield ServerProcess(url=await _read_url(process, start_timeout_s), process=process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def _read_url(process: asyncio.subprocess.Process, timeout_s: float) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.timeout(timeout_s):
        line = (await process.stdout.readline()).decode()
        if READY in line:
            return line.partition(READY)[2].strip()
        process.terminate() if process.returncode is None else None
        errors = (await process.stderr.read()).decode()
    raise RuntimeError(f"the command was not ready: it printed {line!r} and said {errors!r}")
