"""SGLang's wire as the embedded engine, the scripted engine and the bench's mock write it.

1. A reply of any of the three has the members that SGLang's have; what one leaves out it cannot know.
2. A refusal is nested on ``/generate`` and flat elsewhere, and a prompt that is too long is refused in equal words.
3. Rows are spelled as raw int32, little-endian.
4. Both servers have the control routes, and the scripted one's answers have no member that the embedded one's lack.
"""

from typing import Any

import numpy as np
import orjson
import pytest

from tiny.conftest import Serve, Served
from turnkeeper.bench.load.workload import CALL_ID, MODELS, CannedReply
from turnkeeper.bench.mock import MockEngine, build_canned
from turnkeeper.bench.rows import build_rows
from turnkeeper.testing import ScriptedEngine, ScriptedReply, running
from turnkeeper.tiny import wire
from turnkeeper.tiny.wire import MetaInfo, build_error, encode_rows, explain_length, explain_rows_start

BODY: dict[str, Any] = {
    "input_ids": [5, 80, 466],
    "messages": [{"role": "user", "content": "hi"}],
    "logprobs": True,
    "return_meta_info": True,
    "max_tokens": 2,
}


async def ask_scripted(served: Served, path: str) -> dict[str, Any]:
    async with running(ScriptedEngine([ScriptedReply(spans=[("1", 0, 1)], num_retractions=1)])) as url:
        return (await served.client.post(url + path, json=BODY)).json()


def ask_mock() -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    message = {"role": "assistant", "content": "a", "tool_calls": [{"id": CALL_ID, "function": function}]}
    canned = build_canned(CannedReply(message=message, ids=[7, 8], texts=["a", "b"]))
    mock = MockEngine(replies=[canned], rows=build_rows(MODELS["Qwen3-30B-A3B"], 1))
    return orjson.loads(b"".join(mock.answer(b"/v1/chat/completions", orjson.dumps(BODY))))


async def test_chat_replies_have_equal_members(served: Served) -> None:
    embedded = (await served.post("/v1/chat/completions", BODY)).json()
    scripted, mock = await ask_scripted(served, "/v1/chat/completions"), ask_mock()
    assert set(embedded) == set(scripted) == set(mock) | {"usage"}
    choices = [reply["choices"][0] for reply in (embedded, scripted, mock)]
    assert set(choices[0]) == set(choices[1]) == set(choices[2])
    metas = [set(choice["meta_info"]) for choice in choices]
    assert metas[0] == metas[1] == metas[2] | {"weight_versions", "num_retractions"}
    assert choices[2]["meta_info"]["prompt_tokens"] == 3


async def test_generate_replies_have_equal_members(served: Served) -> None:
    body = {**BODY, "sampling_params": {"max_new_tokens": 2}, "return_logprob": True}
    embedded, scripted = (await served.post("/generate", body)).json(), await ask_scripted(served, "/generate")
    assert set(embedded) == set(scripted)
    assert set(embedded["meta_info"]) == set(scripted["meta_info"])


CONTROL: dict[str, dict[str, Any]] = {
    wire.PAUSE: {"mode": "in_place"},
    wire.CONTINUE: {},
    wire.UPDATE_VERSION: {"new_version": "7", "abort_all_requests": False},
    wire.FLUSH_CACHE: {},
    wire.ABORT: {"rid": "nobody"},
    wire.RELEASE_MEMORY: {},
    wire.RESUME_MEMORY: {},
}


@pytest.mark.parametrize(("path", "body"), CONTROL.items())
async def test_control_routes_answer_alike(served: Served, path: str, body: dict[str, Any]) -> None:
    embedded = await served.post(path, body)
    async with running(ScriptedEngine()) as url:
        scripted = await served.client.post(url + path, json=body)
    assert embedded.status_code == scripted.status_code == 200
    if embedded.headers.get("content-type") == "application/json":
        assert set(scripted.json()) <= set(embedded.json())


@pytest.mark.parametrize("path", [wire.HEALTH, wire.READY, wire.MODEL_INFO, wire.MODELS])
async def test_routes_that_describe_an_engine_answer_alike(served: Served, path: str) -> None:
    embedded = await served.client.get(path)
    async with running(ScriptedEngine()) as url:
        scripted = await served.client.get(url + path)
    assert embedded.status_code == scripted.status_code == 200
    if embedded.headers.get("content-type") == "application/json":
        assert set(scripted.json()) <= set(embedded.json())


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_a_prompt_that_is_too_long_is_refused_in_equal_words(serve: Serve, path: str) -> None:
    async with serve() as served:
        limit = served.engine.shape.max_position_embeddings
        body = {**BODY, "input_ids": [5] * limit}
        embedded = (await served.post(path, body)).json()
        async with running(ScriptedEngine(context_length=limit)) as url:
            scripted = (await served.client.post(url + path, json=body)).json()
    assert set(embedded) == set(scripted)
    assert embedded == build_error(path, explain_length(limit, limit) or "")
    assert scripted == embedded


@pytest.mark.parametrize(
    ("start", "is_refused"),
    [(0, False), (3, False), (4, True), (-1, True), ("1", True), (None, True)],
)
def test_rows_start_inside_the_prompt(start: object, is_refused: bool) -> None:
    assert (explain_rows_start(start, 3) is not None) is is_refused


def test_rows_are_raw_bytes() -> None:
    assert encode_rows(np.array([[[1, 258]]], np.int32)) == "AQAAAAIBAAA="
    assert encode_rows(np.zeros((0, 1, 2), np.int32)) == ""


def test_what_is_none_is_left_out_but_for_the_finish_reason() -> None:
    info = MetaInfo(id="a", finish_reason=None, completion_tokens=0, weight_version="1")
    assert info.to_json() == {"id": "a", "finish_reason": None, "completion_tokens": 0, "weight_version": "1"}
