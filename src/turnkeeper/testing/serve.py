"""Run any ASGI application on a free loopback port, inside a test.

Owns the uvicorn server and its socket; knows nothing of the application. The socket listens before `running`
yields, so no test has to wait for readiness.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, MutableMapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

AsgiMessage = MutableMapping[str, Any]
AsgiApp = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
"""Any ASGI application; its scope and messages are the protocol's own untyped dicts."""


class _Server(uvicorn.Server):
    """uvicorn without signal handlers, and with events where it polls a clock."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(SystemExit):  # how uvicorn reports a lifespan that failed
            await super().startup(sockets=sockets)
        if not self.started:
            raise RuntimeError("the application under test failed to start: see its lifespan")
        self.ready.set()

    async def main_loop(self) -> None:
        await self.ended.wait()


@asynccontextmanager
async def running(
    app: AsgiApp, *, host: str = "127.0.0.1", drain_s: int = 2, protocol: Callable[..., asyncio.Protocol] | None = None
) -> AsyncGenerator[str]:
    """Serve the application in this event loop until the block ends.

    Args:
        app: the application; its lifespan is run.
        host: the address to bind; the port is a free one.
        drain_s: how long requests still in flight at the end may take before they are cancelled.
        protocol: reads each connection; None takes uvicorn's.

    Yields:
        The base URL, without a slash at its end.

    Raises:
        RuntimeError: the application's lifespan failed to start.
    """
    config = uvicorn.Config(
        app,
        http=protocol or "auto",  # pyright: ignore[reportArgumentType] - uvicorn only calls it
        log_config=None,  # the program around it has its own
        log_level="critical",
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=drain_s,
    )
    server = _Server(config)
    # Naming the protocol matters: asyncio switches Nagle's algorithm off only where it is named, and each reply would
    # wait 40 ms for a delayed acknowledgement.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind((host, 0))
        listener.listen(2048)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        ready = asyncio.create_task(server.ready.wait())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not server.started:
            ready.cancel()
            await serving  # raises the reason
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.ended.set()
            await serving


@contextmanager
def running_in_thread(app: AsgiApp, *, drain_s: int = 2) -> Generator[str]:
    """Serve the application in a thread with a loop of its own, for tests that use a synchronous client."""
    url: Future[str] = Future()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with running(app, drain_s=drain_s) as address:
            url.set_result(address)
            await ended.wait()

    def work() -> None:
        with contextlib.closing(loop):
            try:
                loop.run_until_complete(serve())
            except BaseException as error:
                if url.done():
                    raise
                url.set_exception(error)

    thread = threading.Thread(target=work, name="turnkeeper-test-server", daemon=True)
    thread.start()
    try:
        yield url.result()
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(ended.set)
        thread.join()
