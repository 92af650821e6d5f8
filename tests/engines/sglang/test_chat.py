"""SGLang's chat wire.

1. The body: ids as they are, what turnkeeper decides wins, routing fields only when asked for.
2. A reply is translated: canonical message, ids, logprobs, versions, payloads; ``meta`` holds the rest.
3. What is no such reply is an `EngineProtocolError`, each kind with its own words.
4. Statuses become the errors that they mean.
5. Worker lists and probes are read from what servers answer.
"""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.builders import make_request, spell_payload
from turnkeeper.channels.routing import RowsRequest
from turnkeeper.core import VersionSpan
from turnkeeper.engines import EngineState, check_generation
from turnkeeper.engines.net.client import HttpReply
from turnkeeper.engines.refusal import build_status_error
from turnkeeper.engines.reply import cut_choice_logprobs
from turnkeeper.engines.sglang.chat import merge_stop_ids, parse_chat_reply, read_status, read_workers, render_chat_body
from turnkeeper.errors import (
    ContextLengthError,
    EngineError,
    EngineProtocolError,
    EngineRefusedError,
    EngineTimeoutError,
    TurnkeeperError,
)

URL = "http://engine/v1/chat/completions"


def body_of(**fields: Any) -> dict[str, Any]:
    return json.loads(render_chat_body(make_request(**fields)))


def test_the_body_asks_for_everything_a_turn_needs() -> None:
    assert body_of() == {
        "input_ids": [11, 12, 13, 14, 15],
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
        "logprobs": True,
        "return_meta_info": True,
        "no_stop_trim": False,
        "rid": "rid-1",
    }


def test_sampling_tools_and_template_arguments_are_sent() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = body_of(
        sampling={"temperature": 0.5, "max_tokens": 7, "top_k": None},
        tools=(tool,),
        chat_template_kwargs={"enable_thinking": True},
        forwarded={"tool_choice": "auto"},
        cache_salt="v1",
    )
    assert (body["temperature"], body["max_tokens"], body["tools"], body["tool_choice"]) == (0.5, 7, [tool], "auto")
    assert (body["chat_template_kwargs"], body["cache_salt"]) == ({"enable_thinking": True}, "v1")
    assert "top_k" not in body


def test_nothing_that_a_client_forwards_changes_what_turnkeeper_decides() -> None:
    hostile = {"input_ids": [1], "stream": True, "logprobs": False, "rid": "x", "n": 3, "return_meta_info": False}
    hostile |= {"return_routed_experts": True, "routed_experts_start_len": 9, "messages": [], "no_stop_trim": True}
    assert body_of(forwarded=hostile, sampling=hostile) == body_of()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {}, id="nothing asked for"),
        pytest.param(
            {"rows": RowsRequest(start_len=None, held_rows=3)}, {"return_routed_experts": True}, id="all rows"
        ),
        pytest.param(
            {"rows": RowsRequest(start_len=0, held_rows=0)},
            {"return_routed_experts": True, "routed_experts_start_len": 0},
            id="from the first",
        ),
        pytest.param(
            {"rows": RowsRequest(start_len=4, held_rows=4)},
            {"return_routed_experts": True, "routed_experts_start_len": 4},
            id="from a start",
        ),
        pytest.param({"wants_indexer": True}, {"return_indexer_topk": True}, id="indexer"),
    ],
)
def test_routing_fields_are_sent_only_when_asked_for(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    body = body_of(**fields)
    names = ("return_routed_experts", "routed_experts_start_len", "return_indexer_topk")
    assert {name: body[name] for name in names if name in body} == expected


@pytest.mark.parametrize("start", [-1, 6])
def test_a_row_start_outside_the_prompt_cannot_be_asked_for(start: int) -> None:
    with pytest.raises(ValueError, match=f"start at {start}"):
        make_request(rows=RowsRequest(start_len=start, held_rows=0))


@pytest.mark.parametrize(
    ("given", "merged"), [(None, [7, 9]), (5, [5, 7, 9]), ([9, 1], [9, 1, 7]), ("x", [7, 9]), ([True, 1], [True, 7, 9])]
)
def test_stop_ids_are_added_to_the_requests_own(given: object, merged: list[int]) -> None:
    assert merge_stop_ids(given, (7, 9)) == merged


def meta(**changes: Any) -> dict[str, Any]:
    value = {
        "id": "m-1",
        "finish_reason": {"type": "stop", "matched": 22},
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "cached_tokens": 3,
        "output_token_logprobs": [[-0.5, 21, "a"], [-0.25, 22, None]],
        "weight_version": "7",
        "e2e_latency": 1.5,
    }
    return {key: item for key, item in (value | changes).items() if item != "absent"}


def reply(*, message: Any = None, choice: dict[str, Any] | None = None, **changes: Any) -> bytes:
    inner = {"index": 0, "message": message or {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    inner |= {"meta_info": meta(**changes)} | (choice or {})
    return json.dumps({"id": "c-1", "model": "m", "choices": [inner]}).encode()


def test_a_reply_is_translated() -> None:
    found = parse_chat_reply(
        reply(routed_experts="A" * 400, weight_versions=[{"version": "7", "start": 0, "end": 2}]), URL
    )
    assert found.ids.tolist() == [21, 22]
    assert found.logprobs.tolist() == [-0.5, -0.25]
    assert (found.finish_reason, found.matched_stop) == ("stop", 22)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (5, 2, 3)
    assert (found.weight_version, found.spans) == ("7", (VersionSpan(version="7", start=0, stop=2),))
    assert (found.response_id, found.model, found.url) == ("c-1", "m", URL)
    assert spell_payload(found.payloads.get("routed_experts")) == "A" * 400
    assert found.meta["e2e_latency"] == 1.5
    assert not {"output_token_logprobs", "routed_experts"} & set(found.meta)


def test_absent_members_are_none_and_nothing_is_guessed() -> None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "weight_version")
    found = parse_chat_reply(reply(**dict.fromkeys(names, "absent")), URL)
    assert (found.prompt_tokens, found.completion_tokens, found.weight_version) == (None, None, None)
    assert (found.cached_tokens, found.spans, found.payloads.get("routed_experts"), found.num_retractions) == (
        0,
        None,
        None,
        0,
    )


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1.0}'}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"content": None}, {"content": ""}, id="null content"),
        pytest.param({"content": "x", "tool_calls": []}, {"content": "x"}, id="empty tool calls"),
        pytest.param({"content": "x", "reasoning_content": None}, {"content": "x"}, id="null reasoning"),
        pytest.param({"content": "x", "reasoning": "r"}, {"content": "x", "reasoning_content": "r"}, id="vllm's name"),
        pytest.param({"content": "", "refusal": None, "x": 1}, {"content": "", "x": 1}, id="extras stay, nulls go"),
        pytest.param(
            {"content": "", "tool_calls": [CALL]},
            {"content": "", "tool_calls": [{k: v for k, v in CALL.items() if k != "index"}]},
            id="arguments keep their spelling",
        ),
    ],
)
def test_messages_are_canonical(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse_chat_reply(reply(message=message), URL).message == {"role": "assistant", **expected}


def test_arguments_sent_as_an_object_become_text() -> None:
    call = CALL | {"function": {"name": "f", "arguments": {"a": 1}}}
    message = parse_chat_reply(reply(message={"content": "", "tool_calls": [call]}), URL).message
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a":1}'


def test_an_abort_that_the_choice_hides_is_an_abort() -> None:
    assert parse_chat_reply(reply(finish_reason={"type": "abort"}), URL).is_aborted


@pytest.mark.parametrize("pairs", ["absent", None, []])
def test_an_abort_before_the_first_token_may_lack_its_lists_and_counts(pairs: Any) -> None:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    raw = reply(finish_reason={"type": "abort"}, output_token_logprobs=pairs, **dict.fromkeys(names, "absent"))
    found = parse_chat_reply(raw, URL)
    assert (found.is_aborted, len(found.ids)) == (True, 0)
    check_generation(found, make_request())


def test_null_and_nan_logprobs_are_kept_for_the_check() -> None:
    raw = reply(output_token_logprobs=[[None, 1, None], [float("nan"), 2, None], [float("-inf"), 3, None]])
    found = parse_chat_reply(raw, URL).logprobs
    assert np.isnan(found[:2]).all()
    assert found[2] == -np.inf


TOKEN_TEXTS = st.sampled_from(['"', ']},"finish_reason":', '"logprobs":{"content":[', "\\", "]}", "a", '"meta_info":'])


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(TOKEN_TEXTS, max_size=6),
    order=st.permutations(["message", "logprobs", "finish_reason", "matched_stop", "meta_info"]),
    extra=st.booleans(),
    said=TOKEN_TEXTS,
)
def test_the_choices_logprobs_change_nothing(texts: list[str], order: list[str], extra: bool, said: str) -> None:
    """They are left out before parsing, wherever they stand and whatever they quote."""
    tokens = [{"token": text, "bytes": list(text.encode()), "logprob": -1.0, "top_logprobs": []} for text in texts]
    logprobs = {"content": tokens, **({"refusal": None} if extra else {})}
    whole = json.loads(reply(message={"role": "assistant", "content": said}))
    choice = {"index": 0, **whole["choices"][0], "logprobs": logprobs}
    written = orjson.dumps({**whole, "choices": [{key: choice.get(key) for key in ("index", *order)}]})
    found, expected = parse_chat_reply(written, URL), parse_chat_reply(orjson.dumps(whole), URL)
    assert (found.message, found.meta) == (expected.message, expected.meta)
    assert (found.finish_reason, found.matched_stop) == (expected.finish_reason, expected.matched_stop)
    assert (found.ids.tolist(), found.logprobs.tolist()) == (expected.ids.tolist(), expected.logprobs.tolist())


def test_the_choices_logprobs_are_left_out_as_sglang_writes_them() -> None:
    text = bytearray(b'{"message":{},"logprobs":{"content":[{"token":"a"}]},"finish_reason":"stop","meta_info":{}}')
    assert cut_choice_logprobs(text) == b'{"message":{},"logprobs":null,"finish_reason":"stop","meta_info":{}}'


def test_top_logprobs_that_are_not_finite_do_no_harm() -> None:
    raw = reply(choice={"logprobs": {"content": [{"top_logprobs": [{"logprob": float("-inf")}]}]}})
    assert parse_chat_reply(raw, URL).ids.tolist() == parse_chat_reply(reply(), URL).ids.tolist()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(b'{"choices": []}', "0 choices", id="no choice"),
        pytest.param(b'{"choices": [{}, {}]}', "2 choices", id="two choices"),
        pytest.param(b"{}", "no choices", id="choices absent"),
        pytest.param(b'{"choices": [null]}', r"choices\[0\]", id="choice is null"),
        pytest.param(b'{"choices": [{"message": {}}]}', "meta_info.*sglang-router", id="meta_info absent"),
        pytest.param(reply(output_token_logprobs="absent"), "lacks meta_info.output_token_logprobs", id="no logprobs"),
        pytest.param(reply(output_token_logprobs=[[-1.0]]), "without a token id", id="an entry without id"),
        pytest.param(reply(output_token_logprobs=[[-1.0, -5, None]]), "without a token id", id="a negative id"),
        pytest.param(reply(output_token_logprobs=[None]), "without a token id", id="a null entry"),
        pytest.param(reply(output_token_logprobs=[{"logprob": -1}]), "without a token id", id="an object entry"),
        pytest.param(reply(message={"content": [1]}), "content", id="content is a list"),
        pytest.param(reply(message={"content": "", "tool_calls": [1]}), "tool_calls", id="a call is no object"),
        pytest.param(reply(choice={"message": None}), "message", id="message is null"),
        pytest.param(reply(choice={"finish_reason": None}, finish_reason=None), "finish_reason", id="no finish reason"),
        pytest.param(reply(weight_versions=[{"version": "1"}]), "version span", id="a span without ends"),
        pytest.param(reply(weight_versions=[{"version": "1", "start": 3, "end": 1}]), "version span", id="backwards"),
        pytest.param(reply(weight_versions=[{"version": "1", "start": "0", "end": 1}]), "version span", id="text ends"),
    ],
)
def test_what_is_no_such_reply_is_refused_by_name(raw: bytes, said: str) -> None:
    with pytest.raises(EngineProtocolError, match=said) as caught:
        parse_chat_reply(raw, URL)
    assert URL in caught.value.message


@pytest.mark.parametrize(
    ("status", "body", "kind", "http_status"),
    [
        pytest.param(400, {"message": "bad temperature"}, EngineRefusedError, 400, id="400"),
        pytest.param(422, {"detail": "bad"}, EngineRefusedError, 400, id="422"),
        pytest.param(429, {"error": {"message": "busy"}}, EngineRefusedError, 429, id="429"),
        pytest.param(413, {"detail": "too large"}, EngineRefusedError, 413, id="413"),
        pytest.param(413, {"message": "context length of 8 tokens"}, ContextLengthError, 400, id="413 for the length"),
        pytest.param(408, {}, EngineTimeoutError, 504, id="408"),
        pytest.param(451, {}, EngineError, 502, id="451"),
        pytest.param(204, {}, EngineError, 502, id="204"),
        pytest.param(401, {"error": "no key"}, EngineError, 502, id="401"),
        pytest.param(404, {"detail": "Not Found"}, EngineError, 502, id="404"),
        pytest.param(302, {}, EngineError, 502, id="redirect"),
        pytest.param(500, {}, EngineError, 502, id="500"),
        pytest.param(503, {}, EngineError, 502, id="503"),
        pytest.param(504, {}, EngineTimeoutError, 504, id="504"),
        pytest.param(
            400,
            {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."},
            ContextLengthError,
            400,
            id="sglang's overflow",
        ),
        pytest.param(
            400,
            {"message": "This model's maximum context length is 4096 tokens. However, you requested 5000."},
            ContextLengthError,
            400,
            id="vllm's overflow",
        ),
    ],
)
def test_statuses_become_what_they_mean(
    status: int, body: dict[str, Any], kind: type[TurnkeeperError], http_status: int
) -> None:
    raw = HttpReply(url=URL, status=status, headers=(("Retry-After", "3"),), body=orjson.dumps(body))
    error = build_status_error(raw, prompt_tokens=9)
    assert type(error) is kind
    assert (error.http_status, error.facts["url"]) == (http_status, URL)
    if kind is EngineRefusedError:
        assert error.retry_after_s == 3
    if kind is ContextLengthError:
        assert error.facts["prompt_tokens"] == 9
        assert error.facts["limit_tokens"] in (8, 4096)


@pytest.mark.parametrize(
    ("statuses", "answers"),
    [
        ((502, 503, 521, 522, 523), False),
        (
            (204, 301, 400, 401, 403, 404, 405, 408, 409, 413, 415, 418, 422, 429, 431, 499, 500, 501, 504, 505, 599),
            True,
        ),
    ],
)
def test_only_a_status_about_the_engine_speaks_against_it(statuses: tuple[int, ...], answers: bool) -> None:
    for status in statuses:
        error = build_status_error(HttpReply(url=URL, status=status, headers=(), body=b"x"), prompt_tokens=1)
        assert error.facts.get("engine_answers", False) is answers


DATE = ("Date", "Tue, 01 Dec 2026 00:00:00 GMT")
WAITS: dict[str, tuple[str, int | None]] = {
    "seconds": ("7", 7),
    "none": ("0", 0),
    "padded": (" 7 ", 7),
    "zeros before": ("0" * 5000 + "7", 7),
    "longer than a day": ("864000", 86_400),
    "5,000 digits": ("9" * 5000, 86_400),
    "a date": ("Tue, 01 Dec 2026 00:00:30 GMT", 30),
    "a date that has passed": ("Mon, 30 Nov 2026 00:00:00 GMT", 0),
    "a date far away": ("Tue, 01 Dec 9999 00:00:00 GMT", 86_400),
    "a date that is none": ("Tue, 99 Dec 2026 00:00:00 GMT", None),
    "negative": ("-1", None),
    "a fraction": ("1.5", None),
    "not a number": ("nan", None),
    "infinite": ("inf", None),
    "digits of another script": ("٣", None),
    "a superscript": ("\u00b2", None),
    "words": ("soon", None),
    "empty": ("", None),
}


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("value", "seconds"), WAITS.values(), ids=WAITS.keys())
def test_an_engine_says_when_to_try_again(status: int, value: str, seconds: int | None) -> None:
    reply = HttpReply(url=URL, status=status, headers=(("Retry-After", value), DATE), body=b"{}")
    error = build_status_error(reply, prompt_tokens=1)
    assert error.facts.get("retry_after_s") == seconds


def test_a_date_without_the_engines_own_date_says_nothing() -> None:
    reply = HttpReply(url=URL, status=429, headers=(("Retry-After", DATE[1]),), body=b"{}")
    assert "retry_after_s" not in build_status_error(reply, prompt_tokens=1).facts


def test_an_error_text_is_quoted_at_a_readable_length() -> None:
    body = orjson.dumps({"error": {"message": "context length of " + "9" * 5000 + "x" * 10**6}})
    error = build_status_error(HttpReply(url=URL, status=400, headers=(), body=body), prompt_tokens=1)
    assert isinstance(error, ContextLengthError)
    assert (len(str(error)) < 3000, "limit_tokens" in error.facts) == (True, False)


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b"[]", b"\xff\xfe"])
def test_an_error_body_of_any_kind_is_quoted(body: bytes) -> None:
    error = build_status_error(HttpReply(url=URL, status=502, headers=(), body=body), prompt_tokens=1)
    assert URL in str(error)


@pytest.mark.parametrize(
    ("body", "workers"),
    [
        (b'{"workers": [{"url": "http://a/"}, {"url": "http://b"}], "total": 2}', ("http://a", "http://b")),
        (b'[{"url": "http://a"}]', ("http://a",)),
        (b'{"detail": "Not Found"}', ()),
        (b"nope", ()),
        (b"null", ()),
    ],
)
def test_a_routers_workers_are_read(body: bytes, workers: tuple[str, ...]) -> None:
    assert read_workers(HttpReply(url=URL, status=200, headers=(), body=body)) == workers


@pytest.mark.parametrize(
    ("ready", "info", "state"),
    [
        pytest.param(200, {}, EngineState.SERVING, id="ready"),
        pytest.param(404, {}, EngineState.SERVING, id="an older build"),
        pytest.param(503, {}, EngineState.PAUSED, id="not ready"),
        pytest.param(404, {"is_paused": True}, EngineState.PAUSED, id="model_info says so"),
    ],
)
def test_a_report_says_whether_the_engine_is_paused(ready: int, info: dict[str, Any], state: EngineState) -> None:
    status = read_status("http://e", ready, {"weight_version": "3", "context_length": 9, "model_path": "m", **info})
    assert (status.state, status.weight_version, status.context_length, status.model) == (state, "3", 9, "m")


COUNTS: dict[str, tuple[Any, Any, int | None]] = {
    "both": (5, {"prompt_tokens": 7}, 5),
    "usage alone": ("absent", {"prompt_tokens": 5}, 5),
    "null": (None, {"prompt_tokens": 5}, 5),
    "a count that nobody counted": ("absent", {"prompt_tokens": 0}, None),
    "neither": ("absent", None, None),
    "usage of another kind": ("absent", [5], None),
    "text": ("absent", {"prompt_tokens": "5"}, None),
}


@pytest.mark.parametrize(("meta_count", "usage", "expected"), COUNTS.values(), ids=COUNTS.keys())
def test_the_prompts_count_is_that_of_meta_info_else_that_of_usage(
    meta_count: Any, usage: Any, expected: int | None
) -> None:
    whole = {**json.loads(reply(prompt_tokens=meta_count)), "usage": usage}
    assert parse_chat_reply(json.dumps(whole).encode(), URL).prompt_tokens == expected


ODD = ["AAAA", "no base64!", [[1]], {}, 7, True, "A" * 400, "!" * 400]


@pytest.mark.parametrize("odd", ODD, ids=[str(each)[:12] for each in ODD])
def test_payloads_that_were_not_asked_for_are_ignored_whatever_they_are(odd: object) -> None:
    raw = reply(routed_experts=odd, indexer_topk=odd, indexer_topk_num_layers=odd)
    found = parse_chat_reply(raw, URL, make_request())
    assert found.payloads == {}
    check_generation(found, make_request())
