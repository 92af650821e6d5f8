"""The shape of a body, read off its bytes.

1. Depth and values are those of the value that a reader makes of it, wherever blocks end: in strings, in escapes.
2. What stands inside strings counts for nothing; what is no JSON is counted without an error.
3. A large body with too many values, or nested too deep, is refused before anything is made of it.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.dialects import jsonbody, jsonscan, parse_object
from turnkeeper.dialects.jsonbody import LARGE_BYTES, MAX_VALUES
from turnkeeper.dialects.jsonscan import scan_json
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import MAX_DEPTH

TEXTS = st.text(st.sampled_from('a"\\[]{},: \n'), max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def measure(value: Any) -> tuple[int, int]:
    """Values and depth, the plain way: an empty list is a value with none in it."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [measure(each) for each in (value.values() if isinstance(value, dict) else value)]
    commas = max(0, len(inner) - 1)
    return 1 + commas + sum(values for values, _ in inner), 1 + max((depth for _, depth in inner), default=0)


@given(value=VALUES, block=st.integers(1, 7), is_ascii=st.booleans())
def test_the_shape_is_that_of_the_value(value: Any, block: int, is_ascii: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonscan, "BLOCK_BYTES", block)
        shape = scan_json(json.dumps(value, ensure_ascii=is_ascii).encode())
    values, depth = measure(value)
    assert (shape.values, shape.depth) == (1 + values, depth)


@given(body=st.binary(max_size=60))
def test_any_bytes_are_counted(body: bytes) -> None:
    assert scan_json(body).values >= 1


PAD = b'{"pad":"' + b"x" * LARGE_BYTES + b'",'
REFUSED = {
    "nested lists": (PAD + b'"a":' + b"[" * 1_200_000 + b"]" * 1_200_000 + b"}", "nested deeper"),
    "nested lists without an end": (PAD + b'"a":' + b"[" * 2_400_000, "nested deeper"),
    "nested objects": (PAD + b'"a":' + b'{"a":' * 300_000 + b"1" + b"}" * 300_001, "nested deeper"),
    "one level too many": (PAD + b'"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested deeper"),
    "empty lists": (PAD + b'"a":[' + b"[]," * MAX_VALUES + b"1]}", "more than"),
    "numbers": (PAD + b'"a":[' + b"1," * MAX_VALUES + b"1]}", "more than"),
    "objects": (PAD + b'"a":[' + b"{}," * MAX_VALUES + b"1]}", "more than"),
    "keys": (PAD + b",".join(b'"%d":1' % number for number in range(MAX_VALUES + 1)) + b"}", "more than"),
    "one key, again and again": (PAD + b",".join([b'"a":1'] * (MAX_VALUES + 1)) + b"}", "more than"),
}


@pytest.mark.parametrize(("body", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_body_that_nobody_could_read_in_time_is_refused_unread(
    body: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: bytes) -> Any:
        raise AssertionError("the body was read")

    monkeypatch.setattr(jsonbody.orjson, "loads", read)
    with pytest.raises(RequestError, match=reason) as caught:
        parse_object(body)
    assert caught.value.http_status == 400


TAKEN = {
    "brackets in a text": PAD + b'"a":"' + b"[" * 2_000_000 + b'"}',
    "commas in a text": PAD + b'"a":"' + b"," * 2_000_000 + b'"}',
    "quotes in a text": PAD + b'"a":"' + b'\\"[' * 500_000 + b'"}',
    "backslashes in a text": PAD + b'"a":"' + b"\\\\" * 1_000_001 + b'"}',
    "JSON in JSON": PAD + b'"a":' + json.dumps("[" * 1_000_000).encode() + b"}",
    "as deep as may be": PAD + b'"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}",
    "duplicate keys": PAD + b",".join([b'"a":1'] * 100_000) + b"}",
}


@pytest.mark.parametrize("body", TAKEN.values(), ids=TAKEN.keys())
def test_a_large_body_that_is_a_conversation_is_read(body: bytes) -> None:
    assert parse_object(body) == json.loads(body)
