"""``turnkeeper serve``: the session server."""

import typer

from turnkeeper.cli.arguments import hide_arguments
from turnkeeper.cli.ending import end_at_ctrl_c


def serve(ctx: typer.Context) -> int:
    """Serve sessions in front of an inference engine."""
    from turnkeeper.cli.options import is_help_asked, print_help

    if is_help_asked(ctx.args):
        print_help("turnkeeper serve", "Serve sessions in front of an inference engine.")
    end_at_ctrl_c()
    from turnkeeper.config.resolve import resolve_command_line

    config = resolve_command_line(ctx.args, program="turnkeeper serve")
    hide_arguments((*config.server.api_key, config.engine.engine_api_key or ""))
    from turnkeeper.server.workers import serve_workers

    return serve_workers(config, is_whole_process=True)
