"""Run a ``turnkeeper`` command that serves as a process of its own, from its readiness line to the end of a block.

Knows nothing of what the command serves: only that it prints `` ready at URL`` once, on stdout, and ends on SIGTERM.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import turnkeeper
from turnkeeper.errors import ProcessError

READY = " ready at "
"""The words before the URL in the one line that a server prints once it serves."""

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A command that serves."""

    url: str
    """Where, without a slash at its end."""

    process: asyncio.subprocess.Process


@asynccontextmanager
async def running_command(
    arguments: Sequence[str],
    *,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    module: str = "turnkeeper",
    start_timeout_s: float = START_TIMEOUT_S,
) -> AsyncGenerator[ServerProcess]:
    """Run ``turnkeeper ARGUMENTS`` until the block ends; a session server then waits for nobody.

    Args:
        arguments: of the command; let it take a free port.
        log: where its stderr goes; None: a temporary file.
        environment: more variables, over those of this process.
        module: run this module with the arguments instead of the command.
        start_timeout_s: how long it may take to be ready.

    Raises:
        ProcessError: it ended, or stayed silent, before it was ready; the end of its log is in the message.
    """
    source = str(Path(turnkeeper.__file__).parent.parent)
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as log_file:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=log_file,
            env={**os.environ, "PYTHONPATH": source, "TURNKEEPER_DRAIN_TIMEOUT": "0", **(environment or {})},
        )
        try:
            url = await _read_url(process, start_timeout_s)
            if url is None:
                await _stop(process)
                log_file.seek(0)
                raise _explain(arguments[0], process, log_file.read(), log)
            yield ServerProcess(url=url, process=process)
        finally:
            await _stop(process)


async def _read_url(process: asyncio.subprocess.Process, timeout_s: float) -> str | None:
    """Read the URL of the readiness line; None when the process ends or the time is up before it."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            async for line in process.stdout:
                if READY in (text := line.decode()):
                    return text.partition(READY)[2].strip()
    except TimeoutError:
        pass
    return None


def _explain(name: str, process: asyncio.subprocess.Process, log: bytes, path: Path | None) -> ProcessError:
    said = log.decode(errors="replace").strip()[-2000:] or "nothing"
    return ProcessError(
        f"`turnkeeper {name}` was not ready: it ended with status {process.returncode} and said: {said}",
        hint=f"its log: {path}" if path is not None else "",
        exit_status=process.returncode,
    )


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End it without a drain, which a second signal ends; kill what does not end."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        process.terminate()  # another signal than the first: two equal ones may arrive as one
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
