"""The likeliest tokens beside each sampled one.

1. Every wire's own form of them is read: at most as many as were asked for, the likeliest first.
2. They are read only where they were asked for, and only if every place has its own.
3. What is malformed is left out and refuses no reply.
"""

import json
from typing import Any

import pytest

from engines.builders import make_request
from turnkeeper.engines.sglang.chat import parse_chat_reply
from turnkeeper.engines.top_logprobs import count_wanted, read_top_logprobs
from turnkeeper.engines.vllm.generate import render_completions_body
from turnkeeper.engines.vllm.reply import StreamedChoice, parse_vllm_reply, read_vllm_reply

URL = "http://engine"
FORMS: dict[str, Any] = {
    "SGLang": [[[-0.5, 5, "a"], [-1.5, 7, None]], [[-2.0, 8, "c"], [-0.1, 9, "d"]]],
    "vLLM by content": [
        {"token_id": 5, "top_logprobs": [{"token_id": 5, "logprob": -0.5}, {"token_id": 7, "logprob": -1.5}]},
        {"token_id": 8, "top_logprobs": [{"token_id": 8, "logprob": -2.0}, {"token_id": 9, "logprob": -0.1}]},
    ],
    "vLLM by name": [{"token_id:5": -0.5, "token_id:7": -1.5}, {"token_id:8": -2.0, "token_id:9": -0.1}],
}
READ = (((5, -0.5), (7, -1.5)), ((9, -0.1), (8, -2.0)))


@pytest.mark.parametrize("places", FORMS.values(), ids=FORMS.keys())
def test_every_wires_form_is_read(places: Any) -> None:
    assert read_top_logprobs(places, tokens=2, wanted=5) == READ
    assert read_top_logprobs(places, tokens=2, wanted=1) == (READ[0][:1], READ[1][:1])
    assert read_top_logprobs(places, tokens=2, wanted=0) is None
    assert read_top_logprobs(places, tokens=3, wanted=5) is None


ODD: list[Any] = [
    None, 5, "x", [], {}, [None], [[]], [[1]], [["x", 5, None]], [[-0.5, "5", None]], [[-0.5, True, None]],
    [[float("nan"), 5, None]], [[float("-inf"), 5, None]], [[-0.5, -1, None]], [[-0.5, 1 << 31, None]],
    {"top_logprobs": [None, {}, {"token_id": 5}]}, {"</think>": -0.5}, {"token_id:": -0.5}, {"token_id:x": -0.5},
    {"token_id:" + "9" * 5000: -0.5},
]  # fmt: skip


@pytest.mark.parametrize("place", ODD, ids=lambda place: repr(place)[:40])
def test_what_is_malformed_is_left_out(place: Any) -> None:
    assert read_top_logprobs([place], tokens=1, wanted=3) == ((),)


@pytest.mark.parametrize("places", [None, 5, "xx", {"a": 1, "b": 2}], ids=repr)
def test_what_is_no_list_of_places_is_none(places: Any) -> None:
    assert read_top_logprobs(places, tokens=2, wanted=3) is None


def test_as_many_are_wanted_as_a_request_asks_for() -> None:
    assert count_wanted(None) == count_wanted(make_request()) == 0
    assert count_wanted(make_request(forwarded={"top_logprobs": 3})) == 3


ASKING = make_request(forwarded={"top_logprobs": 2})


def test_an_sglang_reply_holds_them_where_they_were_asked_for() -> None:
    meta = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "output_token_logprobs": [[-0.5, 5, None], [-2.0, 8, None]],
        "output_top_logprobs": FORMS["SGLang"],
    }
    choice = {"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop", "meta_info": meta}
    raw = json.dumps({"choices": [choice]}).encode()
    assert parse_chat_reply(raw, URL, ASKING).top_logprobs == READ
    assert parse_chat_reply(raw, URL, make_request()).top_logprobs is None


LOGPROBS = {
    "generate": {"content": [{**place, "logprob": -1.0} for place in FORMS["vLLM by content"]]},
    "completions": {"token_logprobs": [-1.0, -1.0], "top_logprobs": FORMS["vLLM by name"]},
}


@pytest.mark.parametrize("logprobs", LOGPROBS.values(), ids=LOGPROBS.keys())
def test_a_vllm_reply_holds_them_whole_or_streamed(logprobs: dict[str, list[Any]]) -> None:
    def say(start: int, stop: int, finish: str | None) -> bytes:
        part = {name: entries[start:stop] for name, entries in logprobs.items()}
        choice = {"token_ids": [5, 8][start:stop], "logprobs": part, "finish_reason": finish}
        return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}).encode()

    def parse(*_: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": "x"}

    assert parse_vllm_reply(say(0, 2, "length"), ASKING, URL, parse).top_logprobs == READ
    assert parse_vllm_reply(say(0, 2, "length"), make_request(), URL, parse).top_logprobs is None
    grown = StreamedChoice(URL, 5)
    grown.feed(say(0, 1, None))
    grown.feed(say(1, 2, "length"))
    assert read_vllm_reply(grown.finish(), ASKING, URL, parse).top_logprobs == READ


def test_vllms_completions_route_is_asked_to_name_them_by_id() -> None:
    assert json.loads(render_completions_body(ASKING, "m", 100))["return_tokens_as_token_ids"] is True
    assert "return_tokens_as_token_ids" not in json.loads(render_completions_body(make_request(), "m", 100))
