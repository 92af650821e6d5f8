"""vLLM's replies.

1. Every reply that a real server was recorded with reads as what it says: ids, logprobs, ending, versions, rows.
2. A streamed reply reads as the whole one does.
3. What a real server refuses with is the error that it should be.
4. Clamped and absent logprobs are not finite again; what is no reply is refused.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.builders import make_request
from turnkeeper.channels.routing import RoutingShape, RowsRequest, take_patch
from turnkeeper.core import VersionSpan
from turnkeeper.core.tokens import TokenIds
from turnkeeper.engines import GenerateRequest, Generation, check_generation
from turnkeeper.engines.net.client import HttpReply
from turnkeeper.engines.refusal import build_status_error
from turnkeeper.engines.vllm.reply import StreamedChoice, parse_vllm_reply, read_vllm_reply
from turnkeeper.errors import (
    ContextLengthError,
    EngineError,
    EngineProtocolError,
    EngineRefusedError,
    TurnkeeperError,
)

URL = "http://vllm"
RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "vllm" / "recorded-0.32.0.json").read_text()
)
PROMPT: list[int] = RECORDED["generate_length"]["request"]["token_ids"]
SHAPE = RoutingShape(layers=4, topk=2, experts=8)


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    return {"role": "assistant", "content": f"parsed {len(ids)}</think>"}


def read(name: str) -> Generation:
    request = make_request(prompt=PROMPT, rows=RowsRequest(start_len=None, held_rows=0))
    kept = RECORDED[name]
    assert kept["status"] == 200
    if "events" not in kept:
        return parse_vllm_reply(json.dumps(kept["body"]).encode(), request, URL, parse)
    grown = StreamedChoice(URL, len(PROMPT))
    streamed = [index for event in kept["events"] for index in grown.feed(json.dumps(event).encode()).tolist()]
    found = read_vllm_reply(grown.finish(), request, URL, parse)
    assert streamed == found.ids.tolist()
    return found


ENDINGS = [
    pytest.param("generate_length", "length", None, 4, id="length"),
    pytest.param("generate_stop", "stop", None, 23, id="end of sequence"),
    pytest.param("generate_stop_string", "stop", "</think>", 1, id="stop string"),
    pytest.param("generate_stop_id", "stop", 4, 1, id="stop id"),
    pytest.param("generate_no_text", "length", None, 4, id="not detokenized"),
    pytest.param("stream_length", "length", None, 4, id="stream"),
    pytest.param("stream_stop_string", "stop", "</think>", 1, id="streamed stop string"),
    pytest.param("completions_length", "length", None, 4, id="completions"),
    pytest.param("completions_stop_string", "stop", "</think>", 1, id="completions stop string"),
    pytest.param("completions_stream", "length", None, 4, id="completions stream"),
    pytest.param("generate_aborted", "abort", None, 17, id="aborted"),
    pytest.param("completions_aborted", "abort", None, 17, id="completions aborted"),
    pytest.param("generate_paused_abort", "abort", None, 18, id="aborted by a pause"),
    pytest.param("generate_paused_waiting", "abort", None, 0, id="aborted before it ran"),
    pytest.param("generate_paused_keep", "length", None, 40, id="frozen"),
    pytest.param("generate_retracted", "length", None, 40, id="retracted"),
]


@pytest.mark.parametrize(("name", "finish", "matched", "count"), ENDINGS)
def test_a_recorded_reply_is_sound_and_ends_as_it_says(name: str, finish: str, matched: object, count: int) -> None:
    found = read(name)
    check_generation(found, make_request(prompt=PROMPT))
    assert (found.finish_reason, found.matched_stop, len(found.ids)) == (finish, matched, count)
    assert (found.prompt_tokens, found.completion_tokens) == (len(PROMPT), count)
    spelled = f"parsed {count}" if isinstance(matched, str) else f"parsed {count}</think>"  # no stop string is shown
    assert found.message["content"] == ("" if finish == "abort" else spelled)


def test_the_ids_and_logprobs_of_all_ways_to_ask_are_the_same() -> None:
    plain = read("generate_length")
    for name in ("generate_no_text", "generate_rows_from", "stream_length", "completions_length", "completions_stream"):
        other = read(name)
        assert other.ids.tolist() == plain.ids.tolist()
        assert np.allclose(other.logprobs, plain.logprobs, atol=1e-5)


@pytest.mark.parametrize("name", ["generate_rows_from", "completions_rows_from"])
def test_recorded_rows_begin_where_asked(name: str) -> None:
    whole, part = read("generate_length").payloads.get("routed_experts"), read(name).payloads.get("routed_experts")
    sizes = {"shape": SHAPE, "prompt_tokens": len(PROMPT), "completion_tokens": 4}
    all_rows = take_patch(whole, request=RowsRequest(start_len=None, held_rows=0), **sizes).rows
    start = len(PROMPT) - 2
    later = take_patch(part, request=RowsRequest(start_len=start, held_rows=start), **sizes).rows
    assert later.equals(all_rows.cut(start, len(all_rows)))


@pytest.mark.parametrize(
    ("name", "count"), [("stream_length", 4), ("generate_aborted", 17), ("generate_retracted", 40)]
)
def test_streamed_aborted_and_retracted_replies_have_all_their_rows(name: str, count: int) -> None:
    request = RowsRequest(start_len=None, held_rows=0)
    sizes = {"prompt_tokens": len(PROMPT), "completion_tokens": count}
    assert (
        len(take_patch(read(name).payloads.get("routed_experts"), request=request, shape=SHAPE, **sizes).rows)
        == 18 + count - 1
    )


def test_a_reply_across_an_update_says_which_weights_sampled_what() -> None:
    expected = (
        VersionSpan(version="after-keep", start=0, stop=19),
        VersionSpan(version="after-retract", start=19, stop=40),
    )
    assert read("generate_retracted").spans == expected
    assert read("generate_retracted").weight_version == "after-retract"
    assert read("completions_length").spans is None  # 0.32 has none on this route


def error_of(name: str) -> TurnkeeperError:
    kept = RECORDED[name]
    if "events" in kept:
        with pytest.raises(TurnkeeperError) as caught:
            StreamedChoice(URL, 1033).feed(json.dumps(kept["events"][0]).encode())
        return caught.value
    return build_status_error(
        HttpReply(url=URL, status=kept["status"], headers=(), body=json.dumps(kept["body"]).encode()), 1033
    )


@pytest.mark.parametrize("name", ["generate_too_long", "stream_too_long", "completions_too_long", "generate_full"])
def test_a_recorded_refusal_of_the_length_is_a_length_error(name: str) -> None:
    error = error_of(name)
    assert isinstance(error, ContextLengthError)
    assert (error.facts["prompt_tokens"], error.facts["limit_tokens"]) == (1033, 1024)


@pytest.mark.parametrize(
    ("name", "said"),
    [("generate_no_such_id", "99999 is out of vocabulary"), ("generate_bad_parameter", "temperature must be")],
)
def test_other_recorded_refusals_are_the_agents(name: str, said: str) -> None:
    error = error_of(name)
    assert isinstance(error, EngineRefusedError)
    assert said in error.message


@pytest.mark.parametrize(("name", "status"), [("generate_off", 403), ("completions_no_such_model", 404)])
def test_what_the_server_does_not_serve_is_an_error_of_the_engine(name: str, status: int) -> None:
    error = error_of(name)
    assert type(error) is EngineError
    assert error.facts["engine_status"] == status


def reply(**changes: Any) -> bytes:
    choice = {
        "index": 0,
        "token_ids": [20, 21],
        "logprobs": {"content": [{"token_id": 20, "logprob": -0.5}, {"token_id": 21, "logprob": -0.25}]},
        "finish_reason": "stop",
        "stop_reason": 21,
        "weight_versions": [{"version": "7", "start": 0, "end": 2}],
    }
    choice = {name: value for name, value in (choice | changes).items() if value != "absent"}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    return json.dumps({"request_id": "r", "model": "m", "choices": [choice], "usage": usage}).encode()


def test_cached_tokens_are_counted_where_the_server_tells() -> None:
    told = parse_vllm_reply(reply(), make_request(), URL, parse)
    assert (told.cached_tokens, told.is_cache_counted) == (4, True)
    assert (read("generate_length").cached_tokens, read("generate_length").is_cache_counted) == (0, False)


def test_a_message_of_the_engines_own_is_not_used() -> None:
    own = {"role": "assistant", "content": "what a parser that nobody chose made of it"}
    assert parse_vllm_reply(reply(message=own), make_request(), URL, parse).message["content"] == "parsed 2</think>"


@pytest.mark.parametrize(
    "logprobs",
    [{"content": [{"logprob": -9999.0}, {"logprob": None}]}, {"token_logprobs": [-9999.0, None]}],
    ids=["generate", "completions"],
)
def test_clamped_and_null_logprobs_are_not_finite_again(logprobs: dict[str, Any]) -> None:
    found = parse_vllm_reply(reply(logprobs=logprobs), make_request(), URL, parse)
    assert found.logprobs[0] == -np.inf
    assert np.isnan(found.logprobs[1])
    with pytest.raises(EngineProtocolError, match="-inf"):
        check_generation(found, make_request())


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(reply(token_ids=None), "no token_ids", id="no ids"),
        pytest.param(reply(token_ids=["x"]), "token ids", id="text ids"),
        pytest.param(reply(logprobs=None), "no logprobs", id="no logprobs"),
        pytest.param(b'{"choices": []}', "0 choices", id="no choice"),
        pytest.param(b'{"choices": [1]}', "no object", id="a choice that is none"),
        pytest.param(b"{}", "no choices", id="choices absent"),
    ],
)
def test_what_is_no_reply_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(EngineProtocolError, match=said):
        parse_vllm_reply(raw, make_request(), URL, parse)


def test_a_stream_that_ends_early_or_reports_an_error_is_one() -> None:
    grown = StreamedChoice(URL, 5)
    chunk = {"choices": [{"index": 0, "token_ids": [20], "logprobs": {"content": [{"logprob": -1.0}]}}]}
    assert grown.feed(json.dumps(chunk).encode()).tolist() == [20]
    assert len(grown.feed(b'{"choices": [], "usage": {"prompt_tokens": 5}}')) == 0
    with pytest.raises(EngineError, match="ended before"):
        grown.finish()
    with pytest.raises(EngineError, match="boom"):
        grown.feed(b'{"error": {"message": "boom", "code": 500}}')
    with pytest.raises(EngineProtocolError, match="token ids"):
        grown.feed(b'{"choices": [{"token_ids": ["x"]}]}')


@pytest.mark.parametrize("ids", [None, []])
def test_an_abort_before_the_first_token_may_lack_its_lists(ids: object) -> None:
    raw = reply(token_ids=ids, logprobs=None, finish_reason="abort", weight_versions=None)
    found = parse_vllm_reply(raw, make_request(), URL, parse)
    assert (found.is_aborted, len(found.ids)) == (True, 0)
