"""``turnkeeper engine``: the embedded engine as a server of its own."""

from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.cli.ending import end_at_ctrl_c


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
    end_at_ctrl_c()
    from turnkeeper.cli.engine_server import serve_engine
    from turnkeeper.tiny.checkpoint import shipped_checkpoint, write_checkpoint
    from turnkeeper.tiny.engine import EngineOptions, TinyEngine

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
    serve_engine(TinyEngine(options), host, port)
