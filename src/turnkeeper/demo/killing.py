"""The session server of a run, which may be killed in the middle of it and started again on its store.

It comes back under its old address, so that agents and trainer, which know nothing of this, find it there again.
"""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from turnkeeper.choices import PauseMode
from turnkeeper.demo.evidence import list_traces
from turnkeeper.demo.stack import Stack, running_server
from turnkeeper.demo.trainer import count_calls, wait_until_busy, wait_until_idle
from turnkeeper.engines import EngineClient
from turnkeeper.server.command import ServerProcess

DUE = (0.4, 0.6)
"""The shares of finished rollouts at which the server is killed: behind the update, which has to meet more turns than
agents take that come back one after the other."""


class DemoServer:
    """The session server of a run, which can be killed where it has a store."""

    def __init__(
        self,
        folder: Path,
        engine_urls: Sequence[str],
        *,
        mode: PauseMode,
        checkpoint: Path,
        options: Sequence[str] = (),
    ) -> None:
        """Prepare a server in front of these engines, with these options; each of its lives has a log in the folder."""
        self._folder = folder
        self._engine_urls = engine_urls
        self._mode = mode
        self._checkpoint = checkpoint
        self._options = options
        self._life = AsyncExitStack()
        self._server: ServerProcess | None = None
        self.kills: list[list[int]] = []
        """For each kill how many calls each engine had traced, once it had ended those that the server had begun."""

    async def __aenter__(self) -> str:
        """Start it on a free port; its URL from now on.

        Raises:
            ProcessError: it did not start.
        """
        return (await self._start(port=0)).url

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        await self._life.aclose()

    def hold(self) -> None:
        """Stop the session server's process (SIGSTOP), until `let_go` or a kill."""
        self._signal(signal.SIGSTOP)

    def let_go(self) -> None:
        """Let the stopped process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._server is not None
        self._server.process.send_signal(number)

    async def kill(self, client: EngineClient) -> None:
        """Kill it, wait until the engines have nothing more to do, and start it again.

        Raises:
            ProcessError: it did not start.
        """
        assert self._server is not None
        self._server.process.kill()
        await self._server.process.wait()
        await wait_until_idle(client, self._engine_urls)
        self.kills.append([trace.read_bytes().count(b"\n") for trace in list_traces(self._folder)])
        await self._life.aclose()
        await self._start(port=urlsplit(self._server.url).port or 0)

    async def _start(self, *, port: int) -> ServerProcess:
        name = f"server-{len(self.kills)}.log" if self.kills else "server.log"
        server = running_server(
            self._folder / name,
            self._engine_urls,
            mode=self._mode,
            checkpoint=self._checkpoint,
            port=port,
            options=self._options,
        )
        self._server = await self._life.enter_async_context(server)
        return self._server


class Killer:
    """Kills the server of a run while turns are in flight."""

    def __init__(self, server: DemoServer, stack: Stack) -> None:
        """Prepare to kill the server of a stack."""
        self._server = server
        self._stack = stack
        self._is_over = False
        self._dues = [(share, asyncio.Event()) for share in DUE]

    def note_progress(self, share: float) -> None:
        """Learn that this share of the rollouts has ended."""
        for due, event in self._dues:
            if share >= due:
                event.set()
        self._is_over = share == 1.0

    async def run(self, updating: asyncio.Lock) -> None:
        """Kill the server at each share, but not while somebody else holds the lock to steer it.

        Raises:
            ProcessError: it did not start again.
        """
        client = EngineClient()
        try:
            for _, event in self._dues:
                await event.wait()
                async with updating:
                    if await self._hold_at_work(client):
                        await self._server.kill(client)
        finally:
            await client.close()

    async def _hold_at_work(self, client: EngineClient) -> bool:
        """Hold the server while engines are at work for it, so that it gets no reply to what they do; False at the end
        of the run."""
        while not self._is_over:
            await wait_until_busy(client, self._stack.engine_urls, 1)
            self._server.hold()
            if await count_calls(client, self._stack.engine_urls, "running"):
                return True
            self._server.let_go()
        return False
