"""``turnkeeper export``: the sessions of a store as tables."""

from pathlib import Path
from typing import Annotated

import typer

from turnkeeper.cli.ending import end_at_ctrl_c

PROGRESS_S = 5.0
"""How often a long export says how far it is."""


def export(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a store.")],
    parquet: Annotated[Path, typer.Option("--parquet", metavar="DIR", help="Folder of the tables, a file each.")],
    session_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="The sessions; all of the store where none is named.")
    ] = None,
) -> None:
    """Write the sessions of a store as Parquet tables: sessions, turns, accounting and forks.

    Beside a running server too, of which nothing is disturbed. A session that cannot be read is left out and named.

    Exit status 0: all sessions are in the tables. 1: one could not be read; the others are in the tables. 2: the store
    or the folder cannot be used, or pyarrow is not installed.
    """
    import time

    from turnkeeper.errors import ConfigError, SessionNotFoundError, TurnkeeperError
    from turnkeeper.views.parquet import ParquetFiles
    from turnkeeper.views.store import StoreSource, show_loaded
    from turnkeeper.views.tables import list_rows
    from turnkeeper.views.words import count

    end_at_ctrl_c()
    source, left_out, told_at = StoreSource(store), 0, time.monotonic()
    chosen = list(dict.fromkeys(session_ids or source.list_ids()))
    with ParquetFiles(parquet) as files:
        for number, session_id in enumerate(chosen):
            try:
                loaded = source.load(session_id)
                files.add(list_rows(loaded, show_loaded(loaded)))
            except ConfigError:
                raise
            except SessionNotFoundError:
                if session_ids:  # else it was removed meanwhile
                    raise
            except TurnkeeperError as error:
                typer.echo(f"session {session_id} is left out: {error}", err=True)
                left_out += 1
            if time.monotonic() - told_at > PROGRESS_S:
                typer.echo(f"{number + 1} of {count(len(chosen), 'session')}", err=True)
                told_at = time.monotonic()
    typer.echo("\n".join(map(str, files.paths.values())))
    if left_out:
        raise typer.Exit(1)
