"""Reading the JSON bodies of engines.

1. A large payload is cut out, wherever its key stands, however it is spaced and wherever the network cut it, and can be
   taken by its key; the rest parses as if it had been there.
2. Text that only looks like a payload is left alone.
3. What Python's writers add to JSON (NaN, infinities, lone surrogates) is read; surrogates become U+FFFD.
4. Anything else is an `EngineProtocolError` that names the URL and what came.
"""

import json
from itertools import pairwise
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.builders import spell_payload
from turnkeeper.engines.reply import ReplyBody, parse_reply, replace_nonfinite
from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import replace_surrogates

URL = "http://engine/v1/chat/completions"
LARGE = "Ab+/" * 100


@pytest.mark.parametrize("key", ["routed_experts", "indexer_topk", "prompt_routed_experts"])
@pytest.mark.parametrize("spacing", ["", " ", " \n\t "])
def test_a_large_payload_is_cut_out_and_taken_by_its_key(key: str, spacing: str) -> None:
    raw = f'{{"meta": {{"a": 1, "{key}"{spacing}:{spacing}"{LARGE}", "b": "x"}}}}'.encode()
    assert len(ReplyBody.read(raw).text) < 100
    reply = parse_reply(raw, URL)
    assert reply.value["meta"]["b"] == "x"
    assert spell_payload(reply.take_payload(reply.value["meta"], key)) == LARGE


def test_several_payloads_keep_their_places() -> None:
    value = {"one": {"routed_experts": LARGE}, "two": {"indexer_topk": LARGE * 2}, "three": {"routed_experts": "CC"}}
    reply = parse_reply(json.dumps(value).encode(), URL)
    assert spell_payload(reply.take_payload(reply.value["one"], "routed_experts")) == LARGE
    assert spell_payload(reply.take_payload(reply.value["two"], "indexer_topk")) == LARGE * 2
    assert reply.take_payload(reply.value["three"], "routed_experts") == b"CC"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"content": f'"routed_experts": "{LARGE}"'}, id="inside a string"),
        pytest.param({"content": 'say \\"routed_experts": "' + LARGE}, id="behind a backslash in a string"),
        pytest.param({"routed_experts": "AAA\\/" + LARGE}, id="with an escape"),
        pytest.param({"routed_experts": "AAAA"}, id="small"),
        pytest.param({"routed_experts": None}, id="null"),
        pytest.param({"x": "routed_experts", "y": LARGE}, id="as a value"),
        pytest.param(["routed_experts", LARGE], id="as a list item"),
    ],
)
def test_text_that_looks_like_a_payload_is_left_alone(value: object) -> None:
    raw = json.dumps({"value": value}).encode()
    assert ReplyBody.read(raw).text == raw
    assert parse_reply(raw, URL).value == {"value": value}


def test_a_payload_cut_short_is_a_broken_reply() -> None:
    with pytest.raises(EngineProtocolError):
        parse_reply(b'{"routed_experts": "' + b"A" * 500, URL)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_slashes_that_a_writer_escaped_are_read(size: int) -> None:
    text = "A" * 300 + "\\/" * 100
    raw = f'{{"routed_experts": "{text}", "a": "b/"}}'.encode()
    body = ReplyBody()
    for start in range(0, len(raw), size):
        body.feed(raw[start : start + size])
    assert spell_payload(parse_reply(body, URL).payloads[0]) == "A" * 300 + "/" * 100


@pytest.mark.parametrize("rest", ["\\n", "\\u0041", '\\"', "%"])
def test_what_is_no_base64_is_noted_and_the_reply_read_or_refused(rest: str) -> None:
    body = ReplyBody.read(f'{{"routed_experts": "{"A" * 400}{rest}", "a": 1}}'.encode())
    assert body.payloads[0].error
    if '"' not in rest:
        assert parse_reply(body, URL).value == {"routed_experts": 0, "a": 1}


def test_an_absent_payload_is_none_and_a_strange_one_is_refused() -> None:
    reply = parse_reply(b'{"routed_experts": [1], "indexer_topk": 0}', URL)
    assert reply.take_payload({}, "routed_experts") is None
    for key in ("routed_experts", "indexer_topk"):
        with pytest.raises(EngineProtocolError, match=key):
            reply.take_payload(reply.value, key)


KEYS = st.sampled_from(["routed_experts", "indexer_topk", "x", "content"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.text(max_size=6)
    | st.text("Ab/+", min_size=40, max_size=80).map(lambda text: text * 16)
    | st.just('"routed_experts": "'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    value=st.dictionaries(KEYS, VALUES, max_size=4),
    ascii_only=st.booleans(),
    cuts=st.sets(st.floats(0, 1, exclude_max=True), max_size=8),
)
def test_putting_the_payloads_back_gives_the_value(
    value: dict[str, object], ascii_only: bool, cuts: set[float]
) -> None:
    """The oracle is Python's own parser on the body that nothing was cut from, whatever chunks it comes in."""
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    body = ReplyBody()
    for start, stop in pairwise([0, *sorted(int(cut * len(raw)) for cut in cuts), len(raw)]):
        body.feed(raw[start:stop])
    reply = parse_reply(body, URL)

    def restore(item: object) -> object:
        if isinstance(item, dict):
            return {key: restore(part) for key, part in item.items()}
        if isinstance(item, list):
            return [restore(part) for part in item]
        return spell_payload(reply.payloads[item]) if isinstance(item, int) and not isinstance(item, bool) else item

    assert restore(reply.value) == value
    assert bytes(body.text) == bytes(ReplyBody.read(raw).text)


def test_numbers_that_are_not_json_are_read() -> None:
    value = parse_reply(b'{"a": NaN, "b": [-Infinity, Infinity, null, 1.5]}', URL).value
    assert isnan(value["a"])
    assert value["b"] == [float("-inf"), float("inf"), None, 1.5]
    assert replace_nonfinite(value) == {"a": None, "b": [None, None, None, 1.5]}


def test_lone_surrogates_are_replaced_and_pairs_kept() -> None:
    raw = rb'{"a\ud83d": ["x\ud83d y", "\ud83d\ude00", 1]}'
    assert parse_reply(raw, URL).value == {"a\ufffd": ["x\ufffd y", "\U0001f600", 1]}
    assert replace_surrogates("\udc00\ud800") == "\ufffd\ufffd"


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        pytest.param(b"", "an empty body", id="empty"),
        pytest.param(b"  \n", "an empty body", id="blank"),
        pytest.param(b"<html><body>502", "<html>", id="html"),
        pytest.param(b'{"choices": [', "choices", id="truncated"),
        pytest.param(b"[1]", "JSON array", id="array"),
        pytest.param(b"null", "JSON null", id="null"),
        pytest.param(b"7", "JSON number", id="number"),
        pytest.param(b'"x"', "JSON string", id="string"),
        pytest.param(b'{"a": "\xff"}', "expected a JSON object", id="not utf-8"),
        pytest.param(b"[" * 100_000, "expected a JSON object", id="too deep"),
    ],
)
def test_anything_else_is_refused_by_name(raw: bytes, found: str) -> None:
    with pytest.raises(EngineProtocolError, match=r"http://engine") as caught:
        parse_reply(raw, URL)
    assert found in str(caught.value)
