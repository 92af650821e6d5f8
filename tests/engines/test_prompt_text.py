"""The JSON of a session's last prompt.

1. Whatever was written before, a body is byte for byte the one that is written with nothing held.
2. What is repeated is not written again, but taken as it was written.
3. The size is that of the ids and of all texts that are held.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from engines.builders import make_request
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import PromptText
from turnkeeper.jsontypes import Message

POOL: tuple[Message, ...] = (
    {"role": "user", "content": "a"},
    {"role": "user", "content": "a"},
    {"role": "user", "content": True},
    {"role": "user", "content": 1},
    {"role": "assistant", "content": "\ud800\u2028", "tool_calls": [{"id": "c", "n": 10**30}]},
)
"""Messages of which some are equal and none is another."""
PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 2), min_size=1, max_size=12),
        st.lists(st.sampled_from(range(len(POOL))), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=8,
)


def render(ids: Sequence[int], messages: Sequence[int], **fields: Any) -> bytes:
    request = make_request(prompt=ids, messages=tuple(POOL[each] for each in messages), **fields)
    return request.render_body("input_ids", {"rid": "r"}, has_messages=True)


@given(prompts=PROMPTS, chained=st.booleans())
def test_a_body_is_what_is_written_with_nothing_held(prompts: list[tuple[list[int], list[int]]], chained: bool) -> None:
    text, ids, messages = PromptText(), list[int](), list[int]()
    for new_ids, new_messages in prompts:
        ids, messages = (ids + new_ids, messages + new_messages) if chained else (new_ids, new_messages)
        body = render(ids, messages, prompt_text=text)
        assert body == render(ids, messages)
        assert orjson.loads(body)["input_ids"] == ids
        assert len(orjson.loads(body)["messages"]) == len(messages)
        assert text.size_bytes == count_bytes(text, ids, messages)


def count_bytes(text: PromptText, ids: Sequence[int], messages: Sequence[int]) -> int:
    written = text.write_ids(freeze_ids(ids)), text.write_messages([POOL[each] for each in messages])
    return 4 * len(ids) + sum(len(piece) for pieces in written for piece in pieces)


def test_what_is_repeated_is_taken_as_it_was_written() -> None:
    text = PromptText()
    first = list(text.write_ids(freeze_ids([1, 2, 3])))
    second = list(text.write_ids(freeze_ids([1, 2, 3, 4])))
    assert (first, second) == ([b"1,2,3"], [b"1,2,3", b",4"])
    assert second[0] is first[0]
    told = [list(text.write_messages(POOL[:count])) for count in (1, 2, 2)]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(told))
    assert told[2][1] is told[1][1]


def test_what_differs_is_written_anew() -> None:
    text = PromptText()
    text.write_ids(freeze_ids([1, 2, 3]))
    assert list(text.write_ids(freeze_ids([1, 2, 4, 5]))) == [b"1,2,4,5"]
    assert list(text.write_ids(freeze_ids([1, 2]))) == [b"1,2"]
    text.write_messages(POOL[:1])
    assert b"".join(text.write_messages(POOL[2:3])) == b'{"role":"user","content":true}'
    assert b"".join(text.write_messages(POOL[3:4])) == b'{"role":"user","content":1}'
