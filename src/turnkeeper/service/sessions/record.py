"""A session as ``GET /sessions/{id}`` shows it: the records of one path, rebuilt from its turns, and metadata.

Nothing of this is stored; requests and replies are put together again from what the turns hold. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from turnkeeper.channels import CHANNELS
from turnkeeper.choices import HistoryKind
from turnkeeper.core import Session, Turn
from turnkeeper.core.tokens import NO_TOKENS, TokenIds, join_ids
from turnkeeper.dialects import DIALECTS
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.samples import OWN_KEY, SessionView, describe_tree, describe_turn

PATHS = {dialect.name: f"/{dialect.path}" for dialect in DIALECTS}
"""Where the turns of each dialect are posted."""


ShowMeta: TypeAlias = Callable[[Mapping[str, Any]], JsonObject]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordView:
    """One turn and what stands before it, as values that never change: a record can be built of them in any thread."""

    turn: Turn
    messages: tuple[Message, ...]
    """All messages of its prompt, call ids as the agent was shown them."""
    parent_ids: TokenIds
    """Shape [P]: its parent's path; empty for a root."""


def view_records(session: Session) -> tuple[RecordView, ...]:
    """List the turns of the live path; under a tree, those of the path of the newest turn."""
    forest = session.forest
    return tuple(
        RecordView(
            turn=turn,
            messages=forest.path_messages(turn.id)[:-1],
            parent_ids=NO_TOKENS if turn.parent is None else forest.path_ids(turn.parent),
        )
        for turn in forest.path(None if forest.last is None else forest.last.id)
    )


def build_records(
    views: Sequence[RecordView], *, with_rows: bool, use_addition_r3: bool, show_meta: ShowMeta = dict
) -> list[JsonObject]:
    """Build one record for each turn; arrays stand for lists.

    Args:
        views: the turns.
        with_rows: whether each record's reply holds the turn's rows.
        use_addition_r3: whether engines are asked for increments of rows.
        show_meta: what is shown of what engines said of a reply.
    """
    return [
        _build_record(view, with_rows=with_rows, use_addition_r3=use_addition_r3, show_meta=show_meta) for view in views
    ]


def build_metadata(
    session: Session, view: SessionView, *, max_trim_tokens: int, own: JsonObject, mismatch: list[JsonObject] | None
) -> JsonObject:
    """Build the metadata of a session for ``GET`` and for samples.

    Args:
        session: the session.
        view: the session as its samples see it.
        max_trim_tokens: the family's.
        own: what is added under ``turnkeeper``.
        mismatch: the entries of ``tito_session_mismatch``; None leaves it out.
    """
    last = None if session.forest.last is None else session.forest.last.id
    metadata: JsonObject = {
        "accumulated_token_ids": [] if last is None else session.forest.path_ids(last),
        "max_trim_tokens": max_trim_tokens,
    }
    if mismatch is not None:
        metadata["tito_session_mismatch"] = mismatch
    if view.history is HistoryKind.TREE:
        metadata["tree"] = describe_tree(view)
    turns = [describe_turn(view, turn.id) for turn in view.turns]
    closed: JsonObject = {} if session.closed_as is None else {"closed": session.closed_as}
    metadata[OWN_KEY] = {
        "history": str(view.history),
        "turns": turns,
        "accounting": session.ledger.to_json(),
        **closed,
        **own,
    }
    return metadata


def add_contents(metadata: JsonObject, turns: Sequence[Turn]) -> JsonObject:
    """Add to each turn of a session's metadata what the turn added to its parent: messages and ids, once each.

    The path of any turn is that of its parent, less the last ``trim`` ids, then its prompt and its completion.
    """
    own: JsonObject = metadata[OWN_KEY]
    known = [{**said, **_describe_content(turn)} for said, turn in zip(own["turns"], turns, strict=True)]
    return {**metadata, OWN_KEY: {**own, "turns": known}}


def _describe_content(turn: Turn) -> JsonObject:
    completion = turn.completion
    return {
        "messages": turn.messages,
        "message": completion.message,
        "trim": turn.prompt.trim,
        "prompt_ids": turn.prompt.ids,
        "completion_ids": completion.ids,
        "logprobs": completion.logprobs,
        "versions": [{"version": span.version, "start": span.start, "end": span.stop} for span in completion.versions],
    }


def _build_record(view: RecordView, *, with_rows: bool, use_addition_r3: bool, show_meta: ShowMeta) -> JsonObject:
    turn = view.turn
    path = PATHS.get(turn.request.dialect, PATHS["chat"])
    return {
        "timestamp": turn.committed_at,
        "request_timestamp": turn.begun_at,
        "method": "POST",
        "path": path,
        "status_code": 200,
        "request": _build_request(view, use_addition_r3=use_addition_r3),
        "response": _build_response(turn, with_rows=with_rows, show_meta=show_meta),
    }


def _build_request(view: RecordView, *, use_addition_r3: bool) -> JsonObject:
    """Rebuild the request that the engine got, with the call ids that the agent knows."""
    turn, request = view.turn, view.turn.request
    kept = view.parent_ids[: len(view.parent_ids) - turn.prompt.trim]
    dropped: list[str] = turn.completion.marks.get("dropped_fields", [])
    fields = {**request.sampling, **request.forwarded}
    asked: JsonObject = {
        "messages": list(view.messages),
        **{name: value for name, value in fields.items() if name not in dropped},
        "logprobs": True,
        "return_meta_info": True,
        "input_ids": join_ids([kept, turn.prompt.ids]) if len(kept) else turn.prompt.ids,
    }
    if request.model:
        asked["model"] = request.model
    if request.callable_tools:
        asked["tools"] = list(request.callable_tools)
    if turn.prompt.chat_template_kwargs:
        asked["chat_template_kwargs"] = dict(turn.prompt.chat_template_kwargs)
    if turn.completion.lora_name is not None:
        asked["lora_path"] = turn.completion.lora_name
    for name, items in turn.completion.channels.items():
        asked |= CHANNELS[name].show_asked(items, parent_tokens=len(view.parent_ids), use_increments=use_addition_r3)
    return asked


def _build_response(turn: Turn, *, with_rows: bool, show_meta: ShowMeta) -> JsonObject:
    """Rebuild the reply in the form of SGLang's chat route."""
    completion = turn.completion
    count = len(completion.ids)
    prompt_tokens = turn.path_tokens - count
    pairs = zip(completion.logprobs.tolist(), completion.ids.tolist(), strict=True)
    meta: JsonObject = {
        **show_meta(completion.meta),
        "prompt_tokens": prompt_tokens,
        "completion_tokens": count,
        "cached_tokens": completion.cached_tokens,
        "output_token_logprobs": [[logprob, token_id, None] for logprob, token_id in pairs],
    }
    if completion.weight_version is not None:
        meta["weight_version"] = completion.weight_version
    if completion.top_logprobs is not None:
        meta["output_top_logprobs"] = [
            [[logprob, token_id, None] for token_id, logprob in place] for place in completion.top_logprobs
        ]
    for name, items in completion.channels.items() if with_rows else ():
        meta |= CHANNELS[name].show(items)
    choice: JsonObject = {
        "index": 0,
        "message": completion.message,
        "finish_reason": str(completion.finish_reason),
        "matched_stop": completion.matched_stop,
        "meta_info": meta,
    }
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count, "total_tokens": turn.path_tokens}
    return {
        "id": completion.response_id,
        "object": "chat.completion",
        "created": int(completion.finished_at),
        "choices": [choice],
        "usage": usage,
    }
