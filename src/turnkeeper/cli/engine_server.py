"""The embedded engine on a socket: one uvicorn server, until a signal ends it."""

import socket

import typer
import uvicorn

from turnkeeper.errors import ConfigError
from turnkeeper.tiny.engine import TinyEngine
from turnkeeper.tiny.server import build_app

DRAIN_S = 3
"""How long replies may take to be written after the signal to end."""


class _Server(uvicorn.Server):
    """uvicorn that says on standard output when it is ready, in one line that programs parse.

    On a signal the engine stops first: what is in flight ends by an abort, and its reply is still written.
    """

    def __init__(self, config: uvicorn.Config, engine: TinyEngine) -> None:
        super().__init__(config)
        self._engine = engine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            typer.echo(f"turnkeeper engine ready at http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._engine.stop()
        await super().shutdown(sockets=sockets)


def serve_engine(engine: TinyEngine, host: str, port: int) -> None:
    """Serve until a signal comes.

    Raises:
        ConfigError: the address cannot be taken.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        build_app(engine),
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=DRAIN_S,
        backlog=2048,
    )
    _Server(config, engine).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="--port 0 takes a free port"
        ) from error
