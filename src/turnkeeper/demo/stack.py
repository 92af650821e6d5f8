"""The processes of the demo: embedded engines and the session server, each started by its own command.

The server is used exactly as in front of a real engine: over HTTP, from another process.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from turnkeeper.choices import PauseMode
from turnkeeper.server.command import running_command

ENGINES = 2

MAX_BATCH = 4
"""Fewer places than agents: some requests always wait at the engines, so that these are busy when a pause comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The addresses of the running processes."""

    server_url: str
    engine_urls: tuple[str, ...]


@asynccontextmanager
async def running_stack(folder: Path, *, mode: PauseMode, checkpoint: Path) -> AsyncGenerator[Stack]:
    """Run the engines and one session server in front of them; end them on exit.

    Args:
        folder: where logs and the engines' traces go.
        mode: the pause mode that the server is told.
        checkpoint: the folder that the engines serve and the server reads its tokenizer from.

    Raises:
        ProcessError: one of them did not start.
    """
    async with (
        running_engines(folder, checkpoint=checkpoint) as urls,
        running_server(folder / "server.log", urls, mode=mode, checkpoint=checkpoint) as server_url,
    ):
        yield Stack(server_url=server_url, engine_urls=urls)


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
    log: Path, urls: Sequence[str], *, mode: PauseMode, checkpoint: Path, options: Sequence[str] = ()
) -> AsyncGenerator[str]:
    """Run one session server in front of these engines, with further options; its URL."""
    async with running_command([*_server_command(checkpoint, urls, mode), *options], log=log) as server:
        yield server.url


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
        *("--session-server-port", "0", "--pause-generation-mode", mode.value, "--use-rollout-routing-replay"),
    ]
