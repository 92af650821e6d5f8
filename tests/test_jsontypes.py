"""JSON of strangers.

1. Depth counts objects and arrays alike, and is measured without recursion.
2. A number is what a double holds; true is none.
3. The writer keeps every digit, replaces lone surrogates, writes arrays of numbers as lists, refuses what is no JSON.
4. The strict reader takes what the standard has, refuses what Python adds to it, and repeated keys where it is told to.
"""

import json
from typing import Any

import numpy as np
import pytest

from turnkeeper.jsontypes import MAX_DEPTH, encode_json, is_number, is_too_deep, parse_finite, parse_strict


def nest(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value, 2] if level % 2 else {"a": value, "b": None}
    return value


@pytest.mark.parametrize(("depth", "is_deep"), [(0, False), (MAX_DEPTH, False), (MAX_DEPTH + 1, True), (20_000, True)])
def test_depth_is_the_number_of_containers_in_each_other(depth: int, is_deep: bool) -> None:
    assert is_too_deep(nest(depth)) is is_deep


def test_breadth_is_no_depth() -> None:
    assert not is_too_deep([[1], {"a": []}] * 1000)


NUMBERS = [(1, True), (-0.5, True), (10**300, True), (10**400, False), (float("inf"), False), (float("nan"), False)]


@pytest.mark.parametrize(("value", "is_one"), [*NUMBERS, (True, False), ("1", False), (None, False)])
def test_a_number_is_what_a_double_holds(value: Any, is_one: bool) -> None:
    assert is_number(value) is is_one


def test_the_writer_keeps_digits_beside_arrays_and_broken_text() -> None:
    value = {"a": 2**70, "b": np.array([1, 2], dtype=np.int32), "c": "x\ud83d", "\ud83d": np.float64(0.5)}
    assert json.loads(encode_json(value)) == {"a": 2**70, "b": [1, 2], "c": "x\ufffd", "\ufffd": 0.5}


def test_the_writer_refuses_what_is_no_json() -> None:
    with pytest.raises(TypeError, match="set"):
        encode_json({"a": {1, 2}})


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, "b", null, true]}', "-0.0", '"\\u00e9"', " [] ", "1e400"])
def test_the_strict_reader_reads_json_as_python_does(text: str) -> None:
    assert parse_strict(text) == json.loads(text)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "[-Infinity]", '{"a": NaN}', "", "{", "{'a': 1}", "01", "[1,]"])
def test_the_strict_reader_refuses_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting|Extra|Illegal"):
        parse_strict(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]', '{"a": 1, "\\u0061": 2}'])
def test_a_repeated_key_is_refused_where_keys_must_be_unique(text: str) -> None:
    assert parse_strict(text) == json.loads(text)
    with pytest.raises(ValueError, match="repeated"):
        parse_strict(text, with_unique_keys=True)


def test_numbers_are_made_as_the_caller_says() -> None:
    assert parse_strict("[1, 2.50]", parse_int=str, parse_float=str) == ["1", "2.50"]
    with pytest.raises(ValueError, match="does not fit"):
        parse_strict("[1e400]", parse_float=parse_finite)
