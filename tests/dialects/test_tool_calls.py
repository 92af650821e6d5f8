"""Tool arguments between text and object.

1. A text that spells an object is that object; whatever a client replays is equal to it by value.
2. A text that spells none travels whole, and comes back as it was.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialectkit import TEXTS, VALUES
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.dialects.tool_calls import UNPARSED_KEY, parse_arguments, render_arguments
from turnkeeper.matching.arguments import are_arguments_equal


@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.sampled_from([None, 1]))
def test_an_object_comes_back_equal(value: dict[str, object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    replayed = json.loads(encode_json(parse_arguments(text)))
    assert are_arguments_equal(text, render_arguments(replayed))


ODD = {
    "broken": '{"a": ',
    "list": "[1]",
    "word": "please",
    "repeated key": '{"a": 1, "a": 1}',
    "NaN": '{"a": NaN}',
    "too large": '{"a": 1e999}',
    "half a pair": '{"a": "\\ud83d"}',
    "deep": "[" * 100_000,
    "the key itself": json.dumps({UNPARSED_KEY: "x"}),
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_a_text_that_spells_no_object_comes_back_as_it_was(text: str) -> None:
    assert parse_arguments(text) == {UNPARSED_KEY: text}
    assert render_arguments(json.loads(encode_json(parse_arguments(text)))) == text


def test_no_text_is_the_empty_object() -> None:
    assert parse_arguments("") == {}
    assert render_arguments({}) == "{}"
