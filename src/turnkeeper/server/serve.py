"""Run the application on a socket: one uvicorn server, until a signal ends it."""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import uvicorn

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.errors import ConfigError
from turnkeeper.http.access_log import AccessLog
from turnkeeper.http.app import build_app
from turnkeeper.http.connection_limits import ConnectionLimits
from turnkeeper.http.protocol import HttpProtocol
from turnkeeper.logs import flush_log
from turnkeeper.server.banner import describe_start
from turnkeeper.server.build import ServerParts, build_parts
from turnkeeper.service.encoding import limit_libraries, release_memory
from turnkeeper.service.lifecycle import Lifecycle

logger = logging.getLogger("turnkeeper")

BACKLOG = 2048
"""Connections that wait to be accepted: a step's rollouts may all connect at once."""


KEEP_ALIVE_S = 900
"""How long an idle connection of an agent stays open: longer than the pools of clients keep theirs, so that no client
sends a request on a connection that is being closed."""

LAST_RESPONSES_S = 3
"""How long responses may still be written once the server takes no more requests; then connections are cut."""

_MARGIN_S = 1
"""How long requests may take to notice that their connection was cut, before uvicorn cancels them."""


class Server(uvicorn.Server):
    """uvicorn that says when it serves, and that drains before it closes its sockets.

    The first signal begins the drain; the server goes on listening until the drain is over or another signal comes.
    """

    def __init__(self, config: uvicorn.Config, lifecycle: Lifecycle, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._lifecycle = lifecycle
        self._on_ready = on_ready
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Count the signals: the second one ends the drain, however soon behind the first it comes."""
        self._signals += 1
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture signals while the server runs, and write the log before the one that ended it ends the process."""
        with super().capture_signals():
            try:
                yield
            finally:
                flush_log()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report readiness once the sockets listen."""
        await super().startup(sockets=sockets)
        if self.started:
            # What is loaded stays: full collections need not walk through it any more. With 16 agents below
            # saturation the slowest hundredth of turns then takes 25 ms longer than the engine, not 95 to 190 ms.
            gc.collect()
            gc.freeze()
            release_memory()
            self._on_ready()

    async def main_loop(self) -> None:
        """Serve until a signal comes, and then until nothing is left or a second signal comes."""
        await super().main_loop()
        self.should_exit = self._signals > 1
        draining = asyncio.create_task(self._drain())
        await super().main_loop()
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        self._lifecycle.end_turns()
        asyncio.get_running_loop().call_later(LAST_RESPONSES_S, self._cut_connections)

    def _cut_connections(self) -> None:
        """Hang up on clients that neither finish their request nor read their response: a cancelled request would be
        logged as a fault of the server."""
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    async def _drain(self) -> None:
        try:
            await self._lifecycle.drain()
        except Exception:
            logger.exception("the drain failed, and the server stops at once")
        self.should_exit = True


def serve(config: ResolvedConfig) -> None:
    """Serve on the port of this process until a signal says to stop, and drain.

    Args:
        config: the options; of several processes, this one's.

    Raises:
        ConfigError: the checkpoint or another option cannot work, or the port is taken.
    """
    for warning in config.warnings:
        logger.warning("%s", warning)
    limit_libraries()
    parts = build_parts(config)
    listener = open_listener(config.server.session_server_ip, config.ports[config.worker or 0])
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"

    def tell_ready() -> None:
        logger.info(describe_start(config, url))
        _print_line(f"turnkeeper session server ready at {url}")
        if config.store_folder is None and not config.worker:
            logger.info("sessions are kept in memory; --store DIR keeps them")

    app = build_app(parts.backend)
    server = Server(
        build_uvicorn_config(
            AccessLog(app, parts.backend.clock) if config.log.access_log else app, build_connection_limits(parts)
        ),
        parts.backend.lifecycle,
        tell_ready,
    )
    with listener:
        server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


def _print_line(line: str) -> None:
    """Write a whole line at once: the processes of a group share their standard output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def build_connection_limits(parts: ServerParts) -> ConnectionLimits:
    """Build the limits of what connections may take of a server."""
    return ConnectionLimits(
        read_timeout_s=parts.config.timeouts.read_timeout_s,
        max_peer_connections=parts.config.limits.max_peer_connections,
        on_error=parts.backend.metrics.record_error,
    )


def build_uvicorn_config(app: object, limits: ConnectionLimits | None = None) -> uvicorn.Config:
    """Build uvicorn's configuration: agents pause for minutes between turns, and their idle connections stay open."""
    return uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType] - any ASGI application
        http=partial(HttpProtocol, limits=limits),  # pyright: ignore[reportArgumentType] - uvicorn only calls it
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_RESPONSES_S + _MARGIN_S,
        server_header=True,
        date_header=True,
        backlog=BACKLOG,
    )


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one.

    Raises:
        ConfigError: the address cannot be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Naming the protocol matters: event loops switch Nagle's algorithm off only where it is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="--session-server-port 0 takes a free port"
        ) from error
    return listener
