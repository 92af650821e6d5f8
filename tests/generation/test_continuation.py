"""What becomes of an aborted turn: decisions and next requests.

1. The decision is a table: unexplained is final; fail answers; resume goes on; restart begins anew while nothing was
   sent; attempts are bounded.
2. State that lives inside an engine is an obstacle to resuming.
3. The next request holds prompt and partial ids, the rest of the budget, and the start of the rows that are verified.
4. A part that is complete all the same is seen.
"""

from typing import Any

import numpy as np
import pytest

from channelkit import ROWS, capture_rows
from engines.builders import make_generation, make_request
from turnkeeper.channels.routing import Patch, RoutingRows, RoutingShape, RowsRequest
from turnkeeper.choices import OnAbort
from turnkeeper.core import FinishReason
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines.sglang.chat import render_chat_body
from turnkeeper.generation.continuation import (
    AbortAction,
    decide_abort,
    derive_request,
    find_natural_end,
    find_obstacle,
)
from turnkeeper.generation.joining import ReplyPart

A = AbortAction


@pytest.mark.parametrize("on_abort", OnAbort)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_abort_that_nothing_explains_is_final(on_abort: OnAbort, streamed: bool) -> None:
    action = decide_abort(
        on_abort, is_explained=False, attempts=1, max_attempts=8, has_streamed=streamed, obstacle=None
    )
    assert action is A.REFUSE


@pytest.mark.parametrize(
    ("on_abort", "streamed", "obstacle", "attempts", "expected"),
    [
        (OnAbort.FAIL, False, None, 1, A.FAIL),
        (OnAbort.FAIL, True, None, 1, A.FAIL),
        (OnAbort.RESTART, False, None, 1, A.RESTART),
        (OnAbort.RESTART, False, "regex", 7, A.RESTART),
        (OnAbort.RESTART, False, None, 8, A.GIVE_UP),
        (OnAbort.RESUME, False, None, 1, A.RESUME),
        (OnAbort.RESUME, True, None, 7, A.RESUME),
        (OnAbort.RESUME, False, "regex", 1, A.RESTART),
        (OnAbort.RESUME, True, "regex", 1, A.GIVE_UP),
        (OnAbort.RESUME, False, None, 8, A.GIVE_UP),
        (OnAbort.RESTART, True, None, 1, A.RESUME),
        (OnAbort.RESTART, True, "regex", 1, A.GIVE_UP),
    ],
)
def test_an_abort_by_a_weight_update_follows_the_option(
    on_abort: OnAbort, streamed: bool, obstacle: str | None, attempts: int, expected: AbortAction
) -> None:
    action = decide_abort(
        on_abort,
        is_explained=True,
        attempts=attempts,
        max_attempts=8,
        has_streamed=streamed,
        obstacle=obstacle,
    )
    assert action is expected


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({}, None),
        ({"sampling": {"temperature": 0.5, "seed": 1, "stop": ["x"], "logit_bias": {"1": 2}}}, None),
        ({"sampling": {"frequency_penalty": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0}}, None),
        ({"forwarded": {"tool_choice": "auto", "response_format": {"type": "text"}, "regex": None}}, None),
        ({"sampling": {"frequency_penalty": 0.1}}, "frequency_penalty"),
        ({"sampling": {"presence_penalty": -1}}, "presence_penalty"),
        ({"forwarded": {"repetition_penalty": 1.05}}, "repetition_penalty"),
        ({"sampling": {"response_format": {"type": "json_schema"}}}, "response_format"),
        ({"forwarded": {"tool_choice": "required"}}, "tool_choice"),
        ({"forwarded": {"tool_choice": {"type": "function"}}}, "tool_choice"),
        ({"forwarded": {"ebnf": "root ::= x"}}, "ebnf"),
        ({"sampling": {"guided_choice": ["x"]}}, "guided_choice"),
        ({"sampling": {"structured_outputs": {"regex": "x"}}}, "structured_outputs"),
    ],
)
def test_state_inside_the_engine_is_an_obstacle(fields: dict[str, Any], obstacle: str | None) -> None:
    assert find_obstacle(make_request(**fields)) == obstacle


def rows(start: int, stop: int) -> Patch:
    zeros = np.zeros((stop - start, 2, 2), np.uint8)
    return Patch(rows=RoutingRows(experts_RLK=zeros), start=start, bad=None, changed_rows=0)


def part(count: int, patch: Patch | None = None) -> ReplyPart:
    generation = make_generation(count, finish_reason="abort")
    taken = {} if patch is None else {ROWS: patch}
    return ReplyPart(request=make_request(), generation=generation, versions=(), taken=taken)


def test_without_a_part_the_turn_is_asked_for_again_under_another_rid() -> None:
    first = make_request()
    again = make_request(rid="r-2")
    assert render_chat_body(derive_request(first, [], rid="r-2")) == render_chat_body(again)


def test_the_next_request_goes_on_behind_the_partial_ids() -> None:
    first = make_request(
        sampling={"max_tokens": 10, "min_tokens": 2, "temperature": 1.0}, forwarded={"max_completion_tokens": 12}
    )
    request = derive_request(first, [part(4), part(1)], rid="r-2")
    assert request.prompt_ids.tolist() == [11, 12, 13, 14, 15, 20, 21, 22, 23, 20]
    assert b'"input_ids":[11,12,13,14,15,20,21,22,23,20],' in render_chat_body(request)
    assert request.sampling == {"max_tokens": 5, "min_tokens": 0, "temperature": 1.0}
    assert (request.forwarded, request.rid) == ({"max_completion_tokens": 7}, "r-2")


@pytest.mark.parametrize(
    ("requested", "patches", "start_len", "held"),
    [
        pytest.param(RowsRequest(start_len=3, held_rows=3), [rows(3, 8)], 8, 8, id="increment: rows held"),
        pytest.param(RowsRequest(start_len=0, held_rows=0), [rows(0, 8), rows(8, 12)], 12, 12, id="two parts"),
        pytest.param(RowsRequest(start_len=None, held_rows=3), [rows(3, 8)], None, 8, id="retract: no start"),
        pytest.param(RowsRequest(start_len=None, held_rows=3), [rows(0, 8)], None, 8, id="retract, latest"),
    ],
)
def test_rows_start_where_the_verified_ones_end(
    requested: RowsRequest, patches: list[Patch], start_len: int | None, held: int
) -> None:
    parts = [part(4, patch) for patch in patches]
    captures = (capture_rows(RoutingShape(layers=2, topk=2, experts=8)),)
    request = derive_request(make_request(rows=requested), parts, rid="r-2", captures=captures)
    assert request.asked[ROWS] == RowsRequest(start_len=start_len, held_rows=held)


@pytest.mark.parametrize(
    ("sampling", "budget"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 9, "max_completion_tokens": 4}, 4),
        ({"max_tokens": None}, None),
    ],
)
def test_the_budget_is_the_smaller_limit(sampling: dict[str, Any], budget: int | None) -> None:
    assert make_request(sampling=sampling).token_budget == budget


@pytest.mark.parametrize(
    ("ids", "held", "fields", "expected"),
    [
        pytest.param([5], 3, {}, None, id="more is to come"),
        pytest.param([5, 2], 3, {}, FinishReason.STOP, id="the family's stop token"),
        pytest.param([5, 7], 3, {"stop_token_ids": (7,)}, FinishReason.STOP, id="the request's stop token"),
        pytest.param([5, 2], 3, {"sampling": {"ignore_eos": True}}, None, id="stop tokens ignored"),
        pytest.param([5], 3, {"sampling": {"max_tokens": 3}}, FinishReason.LENGTH, id="budget used up"),
        pytest.param([5], 3, {"sampling": {"max_tokens": 4}}, None, id="budget left"),
    ],
)
def test_a_part_that_is_complete_all_the_same_is_seen(
    ids: list[int], held: int, fields: dict[str, Any], expected: FinishReason | None
) -> None:
    found = find_natural_end(freeze_ids(ids), held=held, request=make_request(**fields), stop_ids=(2,))
    assert found == expected
