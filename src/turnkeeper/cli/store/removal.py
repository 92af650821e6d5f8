"""``turnkeeper delete`` and ``vacuum``: what goes from a store that no server has open."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeeper.cli.ending import end_at_ctrl_c
from turnkeeper.errors import ConfigError

if TYPE_CHECKING:
    from turnkeeper.store import StoredLine

StoreFolder = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def delete(
    store: StoreFolder,
    session_ids: Annotated[list[str], typer.Argument(metavar="ID", help="The sessions.")],
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete sessions of a store for good: their records and rows go, their ids stay taken.

    A server that has the store deletes by DELETE /sessions/{id}.

    Exit status 0: all of them are deleted. 1: the store has no records of one, or nobody agreed, and none is deleted.
    2: a server has the store, or the store cannot be used.
    """
    import asyncio

    from turnkeeper.server.upkeep import delete_sessions, find_sessions
    from turnkeeper.views.words import count

    end_at_ctrl_c()
    found = find_sessions(store, session_ids)
    lines = [each.line for each in found]
    if not as_json:
        typer.echo("\n".join(map(_describe, lines)))
    if not dry_run:
        if not is_agreed:
            _ask(f"delete {count(len(lines), 'session')} for good?")
        asyncio.run(delete_sessions(store, found))
    if as_json:
        _print_json({"sessions": list(map(_to_json, lines)), "is_deleted": not dry_run})
    else:
        told = "would be deleted" if dry_run else "deleted"
        typer.echo(f"{count(len(lines), 'session')} {told}: {_format_bytes(_sum_bytes(lines))}", err=True)


def vacuum(
    store: StoreFolder,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep", metavar="AGE", help="Remove ended sessions whose last event is older, such as 12h or 7d."
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes",
            metavar="BYTES",
            help="Remove the oldest ended sessions while the store takes more, such as 50GiB: "
            "acknowledged ones first, then collected ones.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give the room that a store does not need back to the file system.

    Sessions are removed only where --keep or --max-bytes says so, and only ended ones: expired, deleted, or without a
    request for longer than their time to live.

    Exit status 0: it is done. 1: the store cannot be written. 2: a server has the store, or the store cannot be used.
    """
    import asyncio
    from math import inf

    from turnkeeper.config.schema.section import read_age, read_bytes
    from turnkeeper.server.upkeep import vacuum_store
    from turnkeeper.views.words import count

    end_at_ctrl_c()
    keep_s = inf if keep is None else read_age("--keep", keep)
    limit = None if max_bytes is None else read_bytes("--max-bytes", max_bytes)
    report = asyncio.run(vacuum_store(store, keep_s=keep_s, max_bytes=limit))
    if as_json:
        removed = list(map(_to_json, report.removed))
        _print_json({"before_bytes": report.before_bytes, "after_bytes": report.after_bytes, "removed": removed})
        return
    if report.removed:
        typer.echo("\n".join(map(_describe, report.removed)))
        typer.echo(f"removed {count(len(report.removed), 'session')}", err=True)
    before, after = map(_format_bytes, (report.before_bytes, report.after_bytes))
    typer.echo(f"the store takes {after}, and took {before}")


def _ask(question: str) -> None:
    """Ask on stderr, and go on only at a yes.

    Raises:
        Exit: the answer is no.
        ConfigError: nobody answers.
    """
    try:
        is_agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        raise ConfigError(
            "nobody answered", hint="--yes deletes without asking, --dry-run shows what would go"
        ) from error
    if not is_agreed:
        typer.echo("nothing is deleted", err=True)
        raise typer.Exit(1)


def _describe(line: "StoredLine") -> str:
    from turnkeeper.views.words import count

    uncollected = _count_uncollected(line)
    rest = f" · {count(uncollected, 'turn')} never collected" if uncollected else ""
    return f"{line.id} · {line.state} · {count(line.turns, 'turn')} · {_format_bytes(_sum_bytes([line]))}{rest}"


def _to_json(line: "StoredLine") -> dict[str, Any]:
    return {
        "session_id": line.id,
        "state": str(line.state),
        "turns": line.turns,
        "uncollected_turns": _count_uncollected(line),
        "bytes": _sum_bytes([line]),
    }


def _count_uncollected(line: "StoredLine") -> int:
    return max(0, line.turns - max(line.collected_turns, line.acknowledged_turns))


def _sum_bytes(lines: Sequence["StoredLine"]) -> int:
    return sum(line.record_bytes + line.row_bytes for line in lines)


def _format_bytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))
