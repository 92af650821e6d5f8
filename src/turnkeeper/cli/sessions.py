"""``turnkeeper sessions``, ``show`` and ``explain``: what a server, a store, or a folder of payloads holds of sessions.

Text goes to people and is never cut when it is piped; ``--json`` goes to programs.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnkeeper.cli.arguments import hide_arguments
from turnkeeper.cli.ending import fail
from turnkeeper.errors import ConfigError, TurnkeeperError

if TYPE_CHECKING:
    from turnkeeper.views import SessionSource, ShownSession

DEFAULT_TARGET = "http://127.0.0.1:30100"
"""The address of a server that was started with the defaults."""

TERMINAL_TEXT = 1000
"""How many characters of a text a terminal is shown, unless whole texts are asked for."""

_KEY_HELP = "A key of the server: the admin's, or that of a session."

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="URL of a server, folder of a store, samples payload, or folder of payloads."
    ),
]
SessionIdText = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The session; needless where the target has one only.")
]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", metavar="KEY", envvar="TURNKEEPER_API_KEY", help=_KEY_HELP, show_envvar=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def sessions(
    target: Target = DEFAULT_TARGET,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only sessions that are open, or closed; with a store expired, in its folder deleted too.",
        ),
    ] = None,
    phase: Annotated[
        str | None,
        typer.Option(
            metavar="PHASE", help="Only with a turn in this phase: rendering, gate, engine, held or recording."
        ),
    ] = None,
    in_flight: Annotated[
        bool | None, typer.Option("--in-flight/--no-in-flight", help="Only with, or without, a turn in flight.")
    ] = None,
    min_age: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Only with a turn in flight, or in the phase, for at least so long."),
    ] = None,
    min_idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Only without a request for at least so long.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only sessions that were created with this metadata.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            metavar="ORDER",
            help="in_flight (longest first), id, created (oldest first), idle (longest first), or bytes (most first).",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many sessions.")] = 1000,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List sessions, on a server those first whose turns have been in flight longest."""
    from turnkeeper.jsontypes import spell_value

    try:
        source = _open(target, api_key)
        given = {"state": state, "phase": phase, "in_flight": in_flight, "min_age": min_age, "min_idle": min_idle}
        given |= {"order": order or ("in_flight" if source.has_turns_in_flight else None)}
        chosen = {name: spell_value(value) for name, value in given.items() if value is not None}
        chosen |= {f"metadata.{key}": value for key, value in map(_split_pair, metadata or [])}
        rows = list(islice(source.iter_rows(chosen), limit + 1))
    except TurnkeeperError as error:
        fail(error)
    shown, has_more = rows[:limit], len(rows) > limit
    elsewhere = source.elsewhere
    if as_json:
        from dataclasses import asdict

        others = None if elsewhere is None else asdict(elsewhere)
        _print([json.dumps({"sessions": shown, "has_more": has_more, "elsewhere": others}, indent=2)])
        return
    from turnkeeper.views.render import render_rows

    _print(render_rows(shown) if shown else ["no session"])
    if has_more:
        typer.echo(f"these are the first {limit}: --limit shows more", err=True)
    if elsewhere is not None:
        typer.echo(str(elsewhere), err=True)


def show(
    target: Target,
    session_id: SessionIdText = None,
    turn: Annotated[
        list[int] | None, typer.Option("--turn", metavar="N", help="Only the content of this turn; may be repeated.")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Only the tree, without the content of turns.")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="A line for each sampled token: id, logprob, version, loss.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Whole texts in a terminal too.")] = False,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Show a session: its tree of turns, and what each was told and sampled."""
    try:
        session = _read(target, session_id, api_key)
        chosen = [number for number in turn or [] if not 0 <= number < len(session.turns)]
        if chosen:
            raise ConfigError(
                f"session {session.id} has no turn {chosen[0]}", hint=f"it has {len(session.turns)}, from 0 on"
            )
    except TurnkeeperError as error:
        fail(error)
    if as_json:
        _print([json.dumps(_to_json(session, turns=turn or [], tree=tree), indent=2)])
        return
    from turnkeeper.views.render import render_session, render_turn

    limit = TERMINAL_TEXT if sys.stdout.isatty() and not full else None
    lines = [] if turn else render_session(session)
    for each in () if tree else session.turns:
        if not turn or each.id in turn:
            lines += render_turn(each, limit=limit, with_tokens=tokens)
    _print(lines[1:] if turn else lines)


def explain(target: Target, session_id: SessionIdText = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Say in sentences what a session waits for, where it forked, what that cost in tokens, and what heals it."""
    try:
        session = _read(target, session_id, api_key)
    except TurnkeeperError as error:
        fail(error)
    from turnkeeper.views import explain_session
    from turnkeeper.views.render import render_explanation

    explanation = explain_session(session)
    _print([json.dumps(explanation.to_json(), indent=2)] if as_json else render_explanation(explanation))


def _open(target: str, api_key: str | None) -> "SessionSource":
    from turnkeeper.views.source import OpenOptions, open_source

    hide_arguments((api_key or "",))
    return open_source(target, OpenOptions(api_key=api_key))


def _read(target: str, session_id: str | None, api_key: str | None) -> "ShownSession":
    """Read the session that is meant: the named one, or the only one."""
    source = _open(target, api_key)
    if session_id is not None:
        return source.read_session(session_id)
    first = [str(row["session_id"]) for row in islice(source.iter_rows({}), 4)]
    if len(first) == 1:
        return source.read_session(first[0])
    if not first:
        raise ConfigError(f"{target} has no session")
    shown = ", ".join(first[:3]) + (", ..." if len(first) > 3 else "")
    raise ConfigError(f"{target} has several sessions: {shown}", hint=f"name one of them; turnkeeper sessions {target}")


def _to_json(session: "ShownSession", *, turns: Sequence[int], tree: bool) -> dict[str, Any]:
    """Return the session ready for JSON; turns whose content was not asked for have none, as in the text."""
    from dataclasses import asdict

    shown = asdict(session)
    for each in shown["turns"]:
        if tree or (turns and each["id"] not in turns):
            each["content"] = None
    return {"session_id": shown.pop("id"), **shown}


def _split_pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--metadata takes KEY=VALUE, got {text!r}")
    return key, value


def _print(lines: Iterable[str]) -> None:
    if hasattr(sys.stdout, "reconfigure"):  # a terminal that cannot show a character gets its number
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue] - asked above
    typer.echo("\n".join(lines))
