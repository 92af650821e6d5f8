"""``turnkeeper engine``: the embedded engine as a server of its own."""

import socket
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from turnkeeper.errors import ConfigError
from turnkeeper.tiny.checkpoint import shipped_checkpoint, write_checkpoint
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
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


def engine(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 30000,
    seed: Annotated[int, typer.Option(help="Seeds the draws of requests that bring no seed of their own.")] = 0,
    weights: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Checkpoint folder to serve, instead of the one shipped.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Requests that run at once; more wait.")] = 32,
    return_routed_experts: Annotated[
        bool, typer.Option(help="Give routing rows to requests that ask; off, replies silently lack them.")
    ] = True,
    debug_kv_trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a JSON line a request: what each KV position was computed with."),
    ] = None,
    write_checkpoint_to: Annotated[
        Path | None,
        typer.Option("--write-checkpoint", metavar="DIR", help="Write the shipped checkpoint as a folder, and end."),
    ] = None,
) -> None:
    """Serve the embedded engine on SGLang's wire: a real mixture of experts, at toy scale."""
    try:
        if write_checkpoint_to is not None:
            write_checkpoint(write_checkpoint_to)
            typer.echo(f"wrote the checkpoint to {write_checkpoint_to}")
            return
        options = EngineOptions(
            checkpoint=weights or shipped_checkpoint(),
            seed=seed,
            max_batch=max_batch,
            has_routed_experts=return_routed_experts,
            kv_trace=debug_kv_trace,
        )
        served = TinyEngine(options)
        listener = _listen(host, port)
    except ConfigError as error:
        typer.echo(f"turnkeeper engine: {error}", err=True)
        raise typer.Exit(2) from error
    config = uvicorn.Config(
        build_app(served),
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=DRAIN_S,
        backlog=2048,
    )
    _Server(config, served).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="--port 0 takes a free port"
        ) from error
