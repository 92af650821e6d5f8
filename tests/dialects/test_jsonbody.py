"""Bodies of strangers.

1. Only a JSON object passes; everything else is a 400 that says what came.
2. NaN and infinities are refused, also as numbers too large for a double.
3. A lone surrogate becomes U+FFFD; a pair stays the character it is.
4. Whole numbers keep all digits, and are written back as they came.
5. Nesting beyond what anything behind can walk or write is refused.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablekit import checking_table
from turnkeeper.dialects import parse_object
from turnkeeper.dialects.jsonbody import encode_json, parse_json, parse_optional_object
from turnkeeper.errors import RequestError

REFUSED = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "broken": (b'{"a":', "not valid JSON"),
    "list": (b"[]", "a list"),
    "null": (b"null", "null"),
    "string": (b'"a"', "a string"),
    "number": (b"3", "a number"),
    "boolean": (b"true", "a boolean"),
    "not utf-8": (b'{"a":"\xff"}', "not valid JSON"),
    "nan": (b'{"a":NaN}', "not valid JSON"),
    "nan beside a surrogate": (b'{"a":NaN,"b":"\\ud83d"}', "NaN"),
    "infinity": (b'{"a":-Infinity}', "not valid JSON"),
    "too large": (b'{"a":1e999}', "not valid JSON"),
    "too large beside a surrogate": (b'{"a":1e999,"b":"\\ud83d"}', "does not fit"),
    "too long": (b'{"a":1' + b"0" * 400 + b"}", "does not fit"),
    "too deep": (b'{"a":' + b"[" * 100_000, "not valid JSON"),
    "deeper than anything behind can walk": (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "nested deeper"),
    "too deep beside a surrogate": (b'{"b":"\\ud83d","a":' + b"[" * 100_000, "not valid JSON"),
}


@pytest.mark.parametrize(("body", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_body_that_is_no_object_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        parse_object(body)
    assert caught.value.http_status == 400


SURROGATES = {
    "lone high": (b'"a\\ud83d b"', "a\ufffd b"),
    "lone low": (b'"a\\ude00"', "a\ufffd"),
    "pair": (b'"\\ud83d\\ude00"', "\U0001f600"),
    "low before high": (b'"\\ude00\\ud83d"', "\ufffd\ufffd"),
    "written out by a text": (b'"\\\\ud83d"', "\\ud83d"),
}


@pytest.mark.parametrize(("body", "text"), SURROGATES.values(), ids=SURROGATES.keys())
def test_only_a_lone_surrogate_is_replaced(body: bytes, text: str) -> None:
    assert parse_json(body) == text


def test_surrogates_are_replaced_in_keys_and_nested_values() -> None:
    assert parse_json(b'{"\\ud83d":[{"a":"\\ud83d"}]}') == {"\ufffd": [{"a": "\ufffd"}]}


def test_whole_numbers_keep_their_digits() -> None:
    assert parse_json(b"123456789012345678901234567890") == 123456789012345678901234567890


def test_whole_numbers_keep_their_digits_wherever_they_stand() -> None:
    with checking_table() as table:
        for digits in [19, 20, 25, 60]:
            for padding in range(20):
                with table.case(repr(padding), repr(digits)):
                    number = int("9" * digits)
                    assert parse_json(b" " * padding + b'{"a":%d}' % number) == {"a": number}


def test_whole_numbers_beyond_64_bits_are_written_back() -> None:
    assert encode_json({"a": 2**70}) == b'{"a":1180591620717411303424}'


def test_a_lone_surrogate_of_ours_is_written_as_its_replacement() -> None:
    assert json.loads(encode_json({"a": "x\ud83d"})) == {"a": "x\ufffd"}


def test_a_body_that_may_be_left_out_reads_as_no_fields() -> None:
    assert parse_optional_object(b"  ") == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(JSON, st.booleans())
def test_what_the_standard_library_writes_reads_back(value: object, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value
