"""A session as ``GET /sessions/{id}`` shows it: the records of one path, rebuilt from its turns, and metadata.

Nothing of this is stored; requests and replies are put together again from what the turns hold. Pure.
"""

from typing import Any

from turnkeeper.choices import HistoryKind
from turnkeeper.core import Session, Turn
from turnkeeper.core.tokens import join_ids
from turnkeeper.jsontypes import JsonObject
from turnkeeper.routing import encode_rows
from turnkeeper.samples import SessionView, describe_tree, describe_turn

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
"""Where the turns of each dialect are posted."""

OWN_KEY = "turnkeeper"
"""Holds everything that no trainer expects."""


def build_records(session: Session, *, with_rows: bool, use_addition_r3: bool) -> list[JsonObject]:
    """One record for each turn of the live path, under a tree of the last commit's path; arrays stand for lists.

    Args:
        session: the session.
        with_rows: whether each record's reply holds the turn's rows.
        use_addition_r3: whether engines are asked for increments of rows.
    """
    path = session.forest.path(None if session.forest.last is None else session.forest.last.id)
    return [_build_record(session, turn, with_rows=with_rows, use_addition_r3=use_addition_r3) for turn in path]


def build_metadata(
    session: Session, view: SessionView, *, max_trim_tokens: int, own: JsonObject, mismatch: list[JsonObject] | None
) -> JsonObject:
    """What ``GET`` and samples say of the session.

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


def _build_record(session: Session, turn: Turn, *, with_rows: bool, use_addition_r3: bool) -> JsonObject:
    path = PATHS.get(turn.request.dialect, PATHS["chat"])
    return {
        "timestamp": turn.committed_at,
        "request_timestamp": turn.begun_at,
        "method": "POST",
        "path": path,
        "status_code": 200,
        "request": _build_request(session, turn, use_addition_r3=use_addition_r3),
        "response": _build_response(turn, with_rows=with_rows),
    }


def _build_request(session: Session, turn: Turn, *, use_addition_r3: bool) -> JsonObject:
    """The request as the engine got it."""
    forest, request = session.forest, turn.request
    parent_ids: Any = [] if turn.parent is None else forest.path_ids(turn.parent)
    kept = parent_ids[: len(parent_ids) - turn.prompt.trim]
    asked: JsonObject = {
        "messages": [*forest.path_messages(turn.parent), *turn.messages],
        **request.sampling,
        **request.forwarded,
        "logprobs": True,
        "return_meta_info": True,
        "input_ids": join_ids([kept, turn.prompt.ids]) if len(kept) else turn.prompt.ids,
    }
    if request.tools:
        asked["tools"] = list(request.tools)
    if turn.prompt.template_kwargs:
        asked["chat_template_kwargs"] = dict(turn.prompt.template_kwargs)
    if turn.completion.rows is not None:
        asked["return_routed_experts"] = True
    if turn.completion.rows is not None and use_addition_r3:
        asked["routed_experts_start_len"] = max(0, len(parent_ids) - 1)
    return asked


def _build_response(turn: Turn, *, with_rows: bool) -> JsonObject:
    """The reply in the form of the engine's chat wire."""
    completion = turn.completion
    count = len(completion.ids)
    prompt_tokens = turn.path_tokens - count
    pairs = zip(completion.logprobs.tolist(), completion.ids.tolist(), strict=True)
    meta: JsonObject = {
        **completion.meta,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": count,
        "cached_tokens": completion.cached_tokens,
        "output_token_logprobs": [[logprob, token_id, None] for logprob, token_id in pairs],
    }
    if completion.weight_version is not None:
        meta["weight_version"] = completion.weight_version
    if with_rows and completion.rows is not None:
        meta["routed_experts"] = encode_rows(completion.rows)
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
