"""Reading the JSON bodies of engines.

1. A large payload is cut out, wherever its key stands and however it is spaced, and can be taken by its key; the rest
   parses as if it had been there.
2. Text that only looks like a payload is left alone.
3. What Python's writers add to JSON (NaN, infinities, lone surrogates) is read; surrogates become U+FFFD.
4. Anything else is an `EngineProtocolError` that names the URL and what came.
"""

import json
from math import isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeeper.engines.reply import _BLOCK_BYTES as BLOCK
from turnkeeper.engines.reply import cut_payloads, find_bytes, find_text_end, parse_reply, replace_nonfinite
from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import replace_surrogates

URL = "http://engine/v1/chat/completions"
LARGE = "Ab+/" * 100


@pytest.mark.parametrize("key", ["routed_experts", "indexer_topk", "prompt_routed_experts"])
@pytest.mark.parametrize("spacing", ["", " ", " \n\t "])
def test_a_large_payload_is_cut_out_and_taken_by_its_key(key: str, spacing: str) -> None:
    raw = f'{{"meta": {{"a": 1, "{key}"{spacing}:{spacing}"{LARGE}", "b": "x"}}}}'.encode()
    cut = cut_payloads(raw)
    assert cut.payloads == (LARGE.encode(),)
    assert len(cut.body) < 100
    reply = parse_reply(raw, URL)
    assert reply.value["meta"]["b"] == "x"
    assert reply.take_payload(reply.value["meta"], key) == LARGE.encode()


def test_several_payloads_keep_their_places() -> None:
    value = {"one": {"routed_experts": LARGE}, "two": {"indexer_topk": LARGE + "AA"}, "three": {"routed_experts": "CC"}}
    reply = parse_reply(json.dumps(value).encode(), URL)
    assert reply.take_payload(reply.value["one"], "routed_experts") == LARGE.encode()
    assert reply.take_payload(reply.value["two"], "indexer_topk") == LARGE.encode() + b"AA"
    assert reply.take_payload(reply.value["three"], "routed_experts") == b"CC"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"content": f'"routed_experts": "{LARGE}"'}, id="inside a string"),
        pytest.param({"content": 'say \\"routed_experts": "' + LARGE}, id="behind a backslash in a string"),
        pytest.param({"routed_experts": LARGE + "\\/"}, id="with an escape"),
        pytest.param({"routed_experts": "AAAA"}, id="small"),
        pytest.param({"routed_experts": None}, id="null"),
        pytest.param({"x": "routed_experts", "y": LARGE}, id="as a value"),
        pytest.param(["routed_experts", LARGE], id="as a list item"),
    ],
)
def test_text_that_looks_like_a_payload_is_left_alone(value: object) -> None:
    raw = json.dumps({"value": value}).encode()
    assert cut_payloads(raw).body == raw
    assert parse_reply(raw, URL).value == {"value": value}


def test_a_payload_cut_short_is_a_broken_reply() -> None:
    with pytest.raises(EngineProtocolError):
        parse_reply(b'{"routed_experts": "' + b"A" * 500, URL)


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
    | st.text("Ab/+=", min_size=200, max_size=300)
    | st.just('"routed_experts": "'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(value=st.dictionaries(KEYS, VALUES, max_size=4), ascii_only=st.booleans())
def test_putting_the_payloads_back_gives_the_value(value: dict[str, object], ascii_only: bool) -> None:
    """The oracle is Python's own parser on the body that nothing was cut from."""
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    reply = parse_reply(memoryview(raw) if ascii_only else raw, URL)

    def restore(item: object) -> object:
        if isinstance(item, dict):
            return {key: restore(part) for key, part in item.items()}
        if isinstance(item, list):
            return [restore(part) for part in item]
        return bytes(reply.payloads[item]).decode() if isinstance(item, int) and not isinstance(item, bool) else item

    assert restore(reply.value) == value


@pytest.mark.parametrize("place", [0, 1, BLOCK - 3, BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1])
def test_a_view_is_searched_across_its_blocks(place: int) -> None:
    body = b"a" * place + b"key" + b"a" * BLOCK
    view = memoryview(body)
    assert find_bytes(view, b"key", 0, len(body)) == place
    assert find_bytes(view, b"key", 0, place + 2) == -1
    assert find_bytes(view, b"key", place + 1, len(body)) == -1


@pytest.mark.parametrize("place", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_a_text_ends_at_its_quote_unless_it_holds_an_escape(place: int) -> None:
    text = b"a" * place
    assert find_text_end(b"xx" + text + b'"\\"', 2) == place + 2
    assert find_text_end(b"xx" + text + b'\\"', 2) == -1
    assert find_text_end(b"xx" + text, 2) == -1


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
