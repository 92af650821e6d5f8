"""The processes of the demo: embedded engines and the session server, each started by its own command.

The server is used exactly as in front of a real engine: over HTTP, from another process.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.choices import PauseMode
from turnkeeper.server.command import ServerProcess, running_command

ENGINES = 2

MAX_BATCH = 4
"""Fewer places than agents: some requests always wait at the engines, so that these are busy when a pause comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The addresses of the running processes."""

    server_url: str
    engine_urls: tuple[str, ...]


@asynccontextmanager
async def running_engines(
    folder: Path, *, checkpoint: Path, max_batch: int = MAX_BATCH
) -> AsyncGenerator[tuple[str, ...]]:
    """Run the engines alone, with so many places each, and each with its log and trace in the folder; their URLs."""
    async with AsyncExitStack() as stack:
        urls: list[str] = []
        for index in range(ENGINES):
            command = _engine_command(folder, index, checkpoint, max_batch)
            engine = running_command(command, log=folder / f"engine-{index}.log")
            urls.append((await stack.enter_async_context(engine)).url)
        yield tuple(urls)


@asynccontextmanager
async def running_server(
    log: Path, urls: Sequence[str], *, mode: PauseMode, checkpoint: Path, port: int = 0, options: Sequence[str] = ()
) -> AsyncGenerator[ServerProcess]:
    """Run one session server in front of these engines.

    Args:
        log: where its log goes.
        urls: of the engines.
        mode: the pause mode that the server is told.
        checkpoint: the folder that it reads its tokenizer from.
        port: where it listens; 0 for a free port.
        options: further ones.

    Raises:
        ProcessError: it did not start.
    """
    command = [*_server_command(checkpoint, urls, mode), "--session-server-port", str(port), *options]
    async with running_command(command, log=log) as server:
        yield server


def _engine_command(folder: Path, index: int, checkpoint: Path, max_batch: int) -> list[str]:
    trace = folder / f"engine-{index}.trace.jsonl"
    return [
        *("engine", "--port", "0", "--seed", str(index), "--weights", str(checkpoint)),
        *("--max-batch", str(max_batch), "--debug-kv-trace", str(trace)),
    ]


def _server_command(checkpoint: Path, urls: Sequence[str], mode: PauseMode) -> list[str]:
    backends = [word for url in urls for word in ("--backend-url", url)]
    return [
        *("serve", "--hf-checkpoint", str(checkpoint), "--tito-model", "qwen3", *backends),
        *("--pause-generation-mode", mode.value, "--use-rollout-routing-replay"),
    ]
