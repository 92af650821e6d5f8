"""Run the application on a socket: one uvicorn server, until a signal ends it."""

import gc
import logging
import socket
import sys
from collections.abc import Callable

import uvicorn

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.errors import ConfigError
from turnkeeper.http.app import build_app
from turnkeeper.http.protocol import HttpProtocol
from turnkeeper.server.build import build_service
from turnkeeper.service.encoding import limit_libraries, release_memory

logger = logging.getLogger("turnkeeper")

BACKLOG = 2048
"""Connections that wait to be accepted: a step's rollouts may all connect at once."""


KEEP_ALIVE_S = 900
"""How long an idle connection of an agent stays open: longer than the pools of clients keep theirs, so that no client
sends a request on a connection that is being closed."""


class Server(uvicorn.Server):
    """uvicorn that says when it serves."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets=sockets)
        if self.started:
            # What is loaded stays: full collections need not walk through it any more. With 16 agents below
            # saturation the slowest hundredth of turns then takes 25 ms longer than the engine, not 95 to 190 ms.
            gc.collect()
            gc.freeze()
            release_memory()
            self._on_ready()


def serve(config: ResolvedConfig, *, worker: int = 0) -> None:
    """Serve until a signal says to stop.

    Args:
        config: the options.
        worker: which of the server's processes this is, from 0; it listens on the port of that number.

    Raises:
        ConfigError: the checkpoint or another option cannot work, or the port is taken.
    """
    for warning in config.warnings if worker == 0 else ():
        logger.warning("%s", warning)
    limit_libraries()
    app = build_app(build_service(config))
    listener = open_listener(config.server.session_server_ip, config.ports[worker])
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    server = Server(
        build_uvicorn_config(app, config),
        lambda: print(f"turnkeeper session server ready at http://{shown}:{port}", flush=True),  # noqa: T201
    )
    with listener:
        server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


def build_uvicorn_config(app: object, config: ResolvedConfig) -> uvicorn.Config:
    """How the server is run: agents pause for minutes between turns, and their idle connections stay open."""
    return uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType] - any ASGI application
        http=HttpProtocol,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(config.timeouts.drain_timeout_s),
        server_header=True,
        date_header=True,
        backlog=BACKLOG,
    )


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

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
