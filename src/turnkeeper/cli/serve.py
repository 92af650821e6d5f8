"""``turnkeeper serve``: the session server."""

import typer

from turnkeeper.cli.arguments import hide_arguments
from turnkeeper.cli.options import end_with_error, read_options
from turnkeeper.errors import ConfigError


def serve(ctx: typer.Context) -> None:
    """Serve sessions in front of an inference engine."""
    config = read_options(ctx.args, program="turnkeeper serve", summary="Serve sessions in front of an engine.")
    hide_arguments((*config.server.api_key, config.engine.engine_api_key or ""))
    # Not at the top: other commands do not need the server's packages, which take half a second to import.
    from turnkeeper.server.workers import serve_workers

    try:
        status = serve_workers(config, is_whole_process=True)
    except ConfigError as error:
        end_with_error(str(error))
    raise typer.Exit(status)
