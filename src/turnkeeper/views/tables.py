"""The sessions of a store as tables: which columns there are, and the rows of one session. Pure.

::

    sessions     a row a session
    turns        a row a turn: what it added to its parent, and what it sampled
    accounting   where sampled tokens went: a row for each turn and reason
    forks        a row for each turn that does not go on from the turn that it came nearest to
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from turnkeeper.core import Turn
from turnkeeper.core.event import TurnCommitted
from turnkeeper.jsontypes import JsonObject
from turnkeeper.store import LoadedSession
from turnkeeper.views.explain import Fork, explain_session
from turnkeeper.views.session import ShownSession, ShownTurn

Row: TypeAlias = dict[str, Any]


class ColumnType(StrEnum):
    """The type of a column, in Arrow's spelling."""

    TEXT = "string"
    INT = "int32"
    LONG = "int64"
    TIME = "timestamp[us, tz=UTC]"
    JSON = "string (JSON)"
    IDS = "list<int32>"
    FLOATS = "list<float>"
    VERSIONS = "list<struct<version: string, start: int32, stop: int32>>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    type: ColumnType
    says: str
    """What it holds, for the reference."""


_SESSION = Column("session_id", ColumnType.TEXT, "the session")
_TURN = Column("turn", ColumnType.INT, "the turn's place in the commit order of its session, from 0")

TABLES: Mapping[str, Sequence[Column]] = {
    "sessions": (
        _SESSION,
        Column("state", ColumnType.TEXT, "`open`, `expired` or `deleted`"),
        Column("history", ColumnType.TEXT, "`linear` or `tree`"),
        Column("closed", ColumnType.TEXT, "why it takes no further turns; null while it does"),
        Column("metadata", ColumnType.JSON, "what its creator gave it"),
        Column("opened_at", ColumnType.TIME, ""),
        Column("changed_at", ColumnType.TIME, "when its last event happened"),
        Column("ended_at", ColumnType.TIME, "when it expired or was deleted; null before"),
        Column("turns", ColumnType.INT, "how many turns it has"),
        Column("sampled_tokens", ColumnType.LONG, "what they sampled"),
        Column("collected_turns", ColumnType.INT, "how many turns, from the first on, were collected"),
        Column("acknowledged_turns", ColumnType.INT, "how many of them a trainer has acknowledged"),
        Column("record_bytes", ColumnType.LONG, "what its records take in the store"),
        Column("row_bytes", ColumnType.LONG, "what its routing rows take, which no table has"),
        Column("unreadable", ColumnType.TEXT, "what could not be read of it; null where all could"),
    ),
    "turns": (
        _SESSION,
        _TURN,
        Column("parent", ColumnType.INT, "the turn that it extends; null for a root"),
        Column("label", ColumnType.TEXT, "what it is among its siblings, as `turnkeeper show` says"),
        Column("agent", ColumnType.TEXT, "the sub-agent that asked; null for the main agent"),
        Column("model", ColumnType.TEXT, "the model that the agent asked for; null where it named none"),
        Column("dialect", ColumnType.TEXT, "`chat`, `messages` or `responses`"),
        Column("response_id", ColumnType.TEXT, "the id of its reply"),
        Column("begun_at", ColumnType.TIME, ""),
        Column("started_at", ColumnType.TIME, "when the engine call began"),
        Column("finished_at", ColumnType.TIME, "when the engine's reply was complete"),
        Column("committed_at", ColumnType.TIME, ""),
        Column("finish_reason", ColumnType.TEXT, ""),
        Column("prompt_tokens", ColumnType.INT, "the length of the whole prompt"),
        Column("cached_tokens", ColumnType.INT, "what of it the engine took from its prefix cache"),
        Column("trim", ColumnType.INT, "how many ids at the end of its parent's path the prompt leaves out"),
        Column("prompt_ids", ColumnType.IDS, "the ids that follow its parent's path; all of them for a root"),
        Column("completion_ids", ColumnType.IDS, "the sampled ids"),
        Column("logprobs", ColumnType.FLOATS, "their log-probabilities, in 32 bits"),
        Column("versions", ColumnType.VERSIONS, "which weights sampled which of them; null for a version nobody knows"),
        Column("weight_version", ColumnType.TEXT, "the engine's version at the end; null where it sent none"),
        Column("lora_name", ColumnType.TEXT, "the adapter; null for the base weights"),
        Column("routing_rows", ColumnType.INT, "how many routing rows are stored; null without routing replay"),
        Column("messages", ColumnType.JSON, "the messages that it appended"),
        Column("reply", ColumnType.JSON, "the message that was delivered"),
        Column("sampling", ColumnType.JSON, "the sampling parameters"),
    ),
    "accounting": (
        _SESSION,
        Column("turn", ColumnType.INT, "the turn that sampled; null for what no turn holds"),
        Column("fate", ColumnType.TEXT, "`trainable`, `masked`, `dropped`; `unknown` where no samples can be made"),
        Column("reason", ColumnType.TEXT, "why they are masked or dropped; null for the others"),
        Column("tokens", ColumnType.LONG, "how many sampled tokens"),
        Column("calls", ColumnType.INT, "in place of tokens, abandoned calls of which nobody reported any"),
    ),
    "forks": (
        _SESSION,
        _TURN,
        Column("parent", ColumnType.INT, "the turn that it extends; null for a root"),
        Column("near", ColumnType.INT, "the turn that it came nearest to extending; null where it came near none"),
        Column("cause", ColumnType.TEXT, "why it is no extension of that"),
        Column("message", ColumnType.INT, "the message with the first difference; null where there is none"),
        Column("field", ColumnType.TEXT, "the field that differs"),
        Column("stored", ColumnType.TEXT, "its stored value, shortened"),
        Column("replayed", ColumnType.TEXT, "its value in the request, shortened"),
        Column("would_match", ColumnType.TEXT, "the matcher under which it would be an extension; null for none"),
        Column("reason", ColumnType.TEXT, "the same in sentences"),
        Column("rendered_tokens", ColumnType.INT, "prompt tokens that were rendered anew"),
        Column("kept_tokens", ColumnType.INT, "stored tokens that could have been gone on from"),
        Column("repeated_tokens", ColumnType.INT, "tokens before the fork, which stand in the samples of both sides"),
        Column("untrained_tokens", ColumnType.INT, "sampled tokens of the side that was left, which do not train"),
    ),
}
"""The columns of each table."""


def list_rows(loaded: LoadedSession, shown: ShownSession) -> Mapping[str, list[Row]]:
    """List the rows of a session, by table.

    Args:
        loaded: its records.
        shown: the session as it is shown.
    """
    turns = tuple(event.turn for event in loaded.events if isinstance(event, TurnCommitted))
    rows: Mapping[str, list[Row]] = {
        "sessions": [_describe_session(loaded, shown)],
        "turns": [_describe_turn(turn, told) for turn, told in zip(turns, shown.turns, strict=True)],
        "accounting": list(_account(shown)),
        "forks": [_describe_fork(fork) for fork in explain_session(shown).forks],
    }
    for row in (row for table in rows.values() for row in table):
        row["session_id"] = str(loaded.line.id)
    return rows


def _describe_session(loaded: LoadedSession, shown: ShownSession) -> Row:
    line = loaded.line
    return {
        "state": str(line.state),
        "history": shown.history,
        "closed": shown.closed or None,
        "metadata": _spell(loaded.opening.settings.get("metadata", {})),
        "opened_at": line.opened_at,
        "changed_at": line.changed_at,
        "ended_at": line.ended_at,
        "turns": len(shown.turns),
        "sampled_tokens": sum(turn.completion_tokens for turn in shown.turns),
        "collected_turns": line.collected_turns,
        "acknowledged_turns": line.acknowledged_turns,
        "record_bytes": line.record_bytes,
        "row_bytes": line.row_bytes,
        "unreadable": "; ".join(shown.notes) or None,
    }


def _describe_turn(turn: Turn, shown: ShownTurn) -> Row:
    completion, rows = turn.completion, turn.completion.channels.get("routed_experts")
    return {
        "turn": turn.id,
        "parent": turn.parent,
        "label": shown.label,
        "agent": turn.agent,
        "model": turn.request.model or None,
        "dialect": turn.request.dialect,
        "response_id": completion.response_id,
        "begun_at": turn.begun_at,
        "started_at": completion.started_at,
        "finished_at": completion.finished_at,
        "committed_at": turn.committed_at,
        "finish_reason": str(completion.finish_reason),
        "prompt_tokens": shown.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "trim": turn.prompt.trim,
        "prompt_ids": turn.prompt.ids,
        "completion_ids": completion.ids,
        "logprobs": completion.logprobs,
        "versions": [{"version": span.version, "start": span.start, "stop": span.stop} for span in completion.versions],
        "weight_version": completion.weight_version,
        "lora_name": completion.lora_name,
        "routing_rows": None if rows is None else sum(map(len, rows.runs)),
        "messages": _spell(turn.messages),
        "reply": _spell(completion.message),
        "sampling": _spell(dict(turn.request.sampling)),
    }


def _account(shown: ShownSession) -> Iterator[Row]:
    """Yield the terms of each turn, and of the session what is left of it: what no turn holds."""
    left: dict[tuple[str, str | None], int] = dict(_list_terms(shown.accounting))
    for turn in shown.turns:
        if turn.trainable is None:
            yield _build_term(turn.id, "unknown", None, turn.completion_tokens)
            continue
        fate: JsonObject = {"trainable": turn.trainable, "masked": turn.masked, "dropped": turn.dropped}
        for (name, reason), tokens in _list_terms(fate):
            left[name, reason] = left.get((name, reason), 0) - tokens
            yield _build_term(turn.id, name, reason, tokens)
    for (name, reason), tokens in left.items():
        if tokens:
            yield _build_term(None, name, reason, tokens)
    for reason, calls in shown.accounting.get("calls", {}).items():
        yield {**_build_term(None, "dropped", reason, None), "calls": calls}


def _list_terms(fate: JsonObject) -> Iterator[tuple[tuple[str, str | None], int]]:
    if fate.get("trainable"):
        yield ("trainable", None), fate["trainable"]
    for name in ("masked", "dropped"):
        for reason, tokens in fate.get(name, {}).items():
            yield (name, reason), tokens


def _build_term(turn: int | None, fate: str, reason: str | None, tokens: int | None) -> Row:
    return {"turn": turn, "fate": fate, "reason": reason, "tokens": tokens, "calls": None}


def _describe_fork(fork: Fork) -> Row:
    difference = fork.turn.difference or {}
    return {
        "turn": fork.turn.id,
        "parent": fork.turn.parent,
        "near": fork.turn.near,
        "cause": fork.turn.cause,
        "message": difference.get("message"),
        "field": difference.get("field"),
        "stored": difference.get("stored"),
        "replayed": difference.get("replayed"),
        "would_match": fork.turn.would_match or None,
        "reason": fork.reason,
        "rendered_tokens": fork.cost.rendered,
        "kept_tokens": fork.cost.kept,
        "repeated_tokens": fork.cost.repeated,
        "untrained_tokens": sum(fork.cost.untrained.values()),
    }


def _spell(value: Any) -> str:
    """Spell a value as JSON, lone surrogates escaped, since a table's texts are UTF-8."""
    return json.dumps(value, ensure_ascii=True)
