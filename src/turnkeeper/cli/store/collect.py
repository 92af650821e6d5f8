"""``turnkeeper collect``: samples of sessions in a store, without their server."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer


def collect(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a store.")],
    session_ids: Annotated[list[str], typer.Argument(metavar="ID", help="The sessions.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the payloads, a file a session.")],
    # Options of the server, written out: the declaration of all of them takes as long to import as Typer.
    hf_checkpoint: Annotated[
        str | None,
        typer.Option("--hf-checkpoint", metavar="DIR", help="Checkpoint folder of the server that wrote the store."),
    ] = None,
    chat_template_path: Annotated[
        str | None, typer.Option("--chat-template-path", metavar="FILE", help="Jinja file that the server had.")
    ] = None,
    picker: Annotated[
        str | None,
        typer.Option("--session-sample-picker-path", "--picker", metavar="NAME", help="Picks the leaves of samples."),
    ] = None,
    postprocessor: Annotated[
        str | None,
        typer.Option(
            "--session-sample-postprocessor-path",
            "--postprocessor",
            metavar="NAME",
            help="Has the last word on samples.",
        ),
    ] = None,
    max_seq_len: Annotated[
        int | None,
        typer.Option(
            "--max-seq-len",
            metavar="N",
            min=1,
            help="The most tokens of a sample.",
            show_default="what the session was opened with",
        ),
    ] = None,
    past_truncation: Annotated[
        bool | None,
        typer.Option(
            "--sample-past-truncation/--no-sample-past-truncation",
            help="Whether samples go on behind a turn that ended by length.",
        ),
    ] = None,
    on_bad_rows: Annotated[
        str | None,
        typer.Option(
            "--on-bad-rows",
            metavar="fail|mask",
            help="Whether a sample whose routing rows the store has lost fails, or has no loss from there on.",
            show_default="fail",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="TOML file of the server, for its other options."),
    ] = None,
) -> None:
    """Collect the samples of sessions in a store, as their server would, into a payload file each.

    Exit status 0: each session has its file. 1: a session could not be collected; those before it have theirs. 2: the
    store, the checkpoint, a hook or an option cannot be used.
    """
    import asyncio

    given = {
        "hf_checkpoint": hf_checkpoint,
        "chat_template_path": chat_template_path,
        "session_sample_picker_path": picker,
        "session_sample_postprocessor_path": postprocessor,
        "sample_past_truncation": past_truncation,
        "on_bad_rows": on_bad_rows,
    }
    asyncio.run(_collect(store, session_ids, out, given, config_file, max_seq_len))


async def _collect(
    folder: Path,
    session_ids: list[str],
    out: Path,
    given: dict[str, Any],
    config_file: Path | None,
    max_seq_len: int | None,
) -> None:
    from turnkeeper.config.load import load
    from turnkeeper.config.resolve import resolve
    from turnkeeper.server.collect import open_collector
    from turnkeeper.views.store import StoreSource, list_notes

    source = StoreSource(folder)
    given["tito_model"] = source.manifest.fingerprint.get("family")
    config = resolve(load(given, environment=os.environ, file=config_file))
    collector = open_collector(config, folder, source.manifest)
    for session_id in session_ids:
        loaded = source.load(session_id)
        for note in list_notes(loaded):
            typer.echo(f"session {session_id}: {note}", err=True)
        collection = await collector.collect(loaded, source.list_receipts(session_id), max_seq_len=max_seq_len)
        typer.echo(_write(out, session_id, collection.encode().to_bytes()))


def _write(folder: Path, session_id: str, payload: bytes) -> Path:
    """Write the payload of a session into the folder, which is made where there is none."""
    from turnkeeper.client.payloads import SUFFIX, write_payload
    from turnkeeper.errors import ConfigError

    path = folder / f"{session_id}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_payload(path, payload)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error}", hint="name a folder that this user may write") from error
    return path
