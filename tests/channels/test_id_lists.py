"""Lists of ids in the text of a reply.

1. Lists of the plain form are cut out, and are those that a JSON parser finds; the rest of the reply is untouched.
2. Lists in any other form stay where they are. A key inside a string is none.
3. Lists that were parsed are taken where all of them are lists of token ids.
"""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.channels.id_lists import IdLists, cut_id_lists, read_id_lists
from turnkeeper.errors import EngineProtocolError


def spell(lists: IdLists) -> list[list[int]]:
    ids = iter(lists.ids.tolist())
    return [[next(ids) for _ in range(count)] for count in lists.counts.tolist()]


LISTS = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), min_size=1, max_size=6)


@given(LISTS, st.text(max_size=4), st.sampled_from([(",", ":"), (", ", ": ")]))
def test_plain_lists_are_cut_out(lists: list[list[int]], text: str, separators: tuple[str, str]) -> None:
    reply = {"text": f'"mask":[[{text}', "mask": lists, "others": [[1], []]}
    rest, found = cut_id_lists(bytearray(json.dumps(reply, separators=separators).encode()), "mask")
    assert found is not None
    assert spell(found) == lists
    assert json.loads(rest) == reply | {"mask": None}
    assert len(found) == len(lists)


@pytest.mark.parametrize(
    "value",
    [[], [[]], [[1], []], [[], [1]], [[1.5]], [["1"]], [[-1]], [[1, [2]]], [1], None, "[[1]]", [[[1]]], [[None]]],
    ids=repr,
)
def test_other_forms_stay_where_they_are(value: Any) -> None:
    text = bytearray(json.dumps({"mask": value}).encode())
    rest, found = cut_id_lists(text, "mask")
    assert (rest, found) == (text, None)


@pytest.mark.parametrize("text", [b'{"x":1}', b'{"mask":[[1,2', b'{"a":"\\"mask\\":[[1]]"}', b'{"mask":[[1],2,[3]]}'])
def test_what_is_no_list_under_the_key_is_left_alone(text: bytes) -> None:
    assert cut_id_lists(bytearray(text), "mask") == (bytearray(text), None)


def test_lists_that_were_parsed_are_the_same() -> None:
    assert spell(read_id_lists([[7, 8], [9], []], "mask")) == [[7, 8], [9], []]


@pytest.mark.parametrize("value", ["x", {}, [1], [[1.0]], [[True]], [[-1]], [[2**31]], [["1"]], [None]], ids=repr)
def test_what_is_no_list_of_ids_is_refused(value: Any) -> None:
    with pytest.raises(EngineProtocolError, match="mask must"):
        read_id_lists(value, "mask")
