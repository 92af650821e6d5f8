"""The sampled tokens of a reply, taken out of its raw text.

1. What is cut out is what parsing the whole reply would give, whatever numbers the list holds.
2. A list in any other shape stays where it is, and is read after parsing, to the same ids or the same refusal.
3. The rest of the reply is what it was, with null in place of the list.
"""

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.engines.reply import parse_reply
from turnkeeper.engines.token_logprobs import TokenLogprobs, cut_token_logprobs, read_token_logprobs
from turnkeeper.errors import EngineProtocolError

URL = "http://engine"
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**40), 2**40) | st.booleans()
ENTRIES = st.lists(st.tuples(NUMBERS, NUMBERS, st.none()), min_size=1, max_size=12)


def write(entries: object, **fields: Any) -> bytearray:
    meta = {"id": "a", "output_token_logprobs": entries, "completion_tokens": 3, **fields}
    return bytearray(orjson.dumps({"text": 'x "output_token_logprobs":[[', "meta_info": meta}))


@given(entries=ENTRIES)
def test_the_cut_list_says_what_the_parsed_one_says(entries: list[tuple[Any, Any, None]]) -> None:
    text = write(entries)
    rest, cut = cut_token_logprobs(text)
    assert cut is not None
    parsed = read_token_logprobs(orjson.loads(text)["meta_info"]["output_token_logprobs"], URL)
    assert list(map(repr, cut.ids)) == list(map(repr, parsed.ids))
    assert list(map(repr, cut.logprobs)) == list(map(repr, parsed.logprobs))
    np.testing.assert_array_equal(cut.freeze_logprobs(), parsed.freeze_logprobs())
    assert freeze_or_refuse(cut) == freeze_or_refuse(parsed)
    assert orjson.loads(rest) == orjson.loads(write(None))


def freeze_or_refuse(found: TokenLogprobs) -> object:
    try:
        return found.freeze_ids(URL).tolist()
    except EngineProtocolError as error:
        return str(error)


@given(entries=st.lists(st.tuples(st.floats(-9, 0), st.integers(-1, 2**31) | st.booleans(), st.none()), min_size=1))
def test_ids_of_the_cut_list_are_those_of_the_parsed_one(entries: list[tuple[Any, Any, None]]) -> None:
    text = write(entries)
    _, cut = cut_token_logprobs(text)
    assert cut is not None
    parsed = read_token_logprobs(orjson.loads(text)["meta_info"]["output_token_logprobs"], URL)
    assert freeze_or_refuse(cut) == freeze_or_refuse(parsed)
    assert cut.freeze_logprobs().tobytes() == parsed.freeze_logprobs().tobytes()


IRREGULAR: dict[str, object] = {
    "texts": [[-0.5, 7, "a"], [-0.25, 8, "b"]],
    "a text that holds the end of the list": [[-0.5, 7, "null]]"], [-0.25, 8, None]],
    "the first without a text": [[-0.5, 7, None], [-0.25, 8, "]["]],
    "pairs": [[-0.5, 7], [-0.25, 8]],
    "entries of two and four members": [[-0.5, 7, None, -0.25], [8, None]],
    "a null before its place": [[-0.5, None, 7], [None, 8, None]],
    "a list inside an entry": [[-0.5, [7], None]],
    "an object inside an entry": [[-0.5, {"id": 7}, None]],
    "an entry that is no list": [[-0.5, 7, None], 8, None],
    "an empty entry": [[], [-0.5, 7, None]],
    "no tokens": [],
    "an object": {"0": [[-0.5, 7, None]]},
    "null": None,
}


@pytest.mark.parametrize("entries", IRREGULAR.values(), ids=IRREGULAR)
def test_a_list_of_another_shape_is_left_to_the_parser(entries: object) -> None:
    text = write(entries)
    assert cut_token_logprobs(text) == (text, None)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps({"output_token_logprobs": [[-0.5, 7, None]]}), id="with spaces"),
        pytest.param('{"output_token_logprobs":[[-0.5,7,null]],"output_token_logprobs":[[-1.0,8,null]]}', id="twice"),
        pytest.param('{"output_token_logprobs":[[-0.5,7,null]', id="cut off"),
        pytest.param('{"output_token_logprobs":[[-0.5,7,nul', id="cut off in an entry"),
        pytest.param('{"output_token_logprobs":[[NaN,7,null]]}', id="NaN, which JSON has not"),
        pytest.param('{"output_token_logprobs":[[-0.5,7,null]null]]}', id="no list at all"),
    ],
)
def test_a_reply_that_is_written_otherwise_is_left_to_the_parser(text: str) -> None:
    assert cut_token_logprobs(bytearray(text.encode())) == (text.encode(), None)


def test_a_reply_that_is_broken_elsewhere_is_parsed_whole() -> None:
    """NaN is no JSON: the lenient parser then reads everything, the list with it."""
    raw = b'{"meta_info":{"output_token_logprobs":[[-0.5,7,null]],"e2e_latency":NaN}}'
    reply = parse_reply(raw, URL, cut_logprobs=True)
    assert reply.sampled is None
    assert not reply.is_strict
    assert reply.value["meta_info"]["output_token_logprobs"] == [[-0.5, 7, None]]


@pytest.mark.parametrize("token_id", [True, 1.0, -1, 2**31, 2**70, None])
def test_an_entry_without_a_token_id_is_refused(token_id: object) -> None:
    text = bytearray(json.dumps({"output_token_logprobs": [[-0.5, token_id, None]]}, separators=(",", ":")).encode())
    _, cut = cut_token_logprobs(text)
    assert cut is not None
    with pytest.raises(EngineProtocolError, match="an entry without a token id"):
        cut.freeze_ids(URL)


def test_what_is_no_number_is_a_logprob_of_nan() -> None:
    _, cut = cut_token_logprobs(bytearray(b'{"output_token_logprobs":[[null,7,null],[-1,8,null],[true,9,null]]}'))
    assert cut is not None
    np.testing.assert_array_equal(cut.freeze_logprobs(), [np.nan, -1.0, np.nan])
