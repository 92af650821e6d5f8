"""Bodies that repeat the one before them.

1. A body that begins as the known one is parsed to what it is as a whole, its known messages left out.
2. What differs anywhere in the known part, in a byte, is parsed as a whole.
3. A body whose messages cannot be told apart for certain is parsed as a whole, and nothing is known of it.
4. What is refused is refused in the words of a whole body.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.dialects import parse_object
from turnkeeper.dialects.jsonbody import LARGE_BYTES
from turnkeeper.dialects.known_body import ParsedBody, parse_body
from turnkeeper.errors import RequestError

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
VALUES = st.dictionaries(st.text(max_size=4), ANY, max_size=3) | ANY
"""Messages: objects for the most part."""

MEMBERS = st.dictionaries(st.text(max_size=6).filter(lambda name: name != "messages"), ANY, max_size=3)
SPELLINGS = st.sampled_from([(",", ":", None), (", ", ": ", None), (",", ":", 1)])


def spell(head: Any, messages: list[Any], tail: Any, spelling: tuple[str, str, int | None]) -> bytes:
    comma, colon, indent = spelling
    body = {**head, "messages": messages, **{name: tail[name] for name in tail if name not in head}}
    return json.dumps(body, separators=(comma, colon), indent=indent, ensure_ascii=False).encode("utf-8", "replace")


def join(known: Any, parsed: ParsedBody) -> Any:
    """The whole body again."""
    if not parsed.is_continued:
        return parsed.value
    return {**parsed.value, "messages": [*known, *parsed.value["messages"]]}


def say(read: Callable[[], Any]) -> str:
    """What is read, or why it is refused."""
    try:
        return repr(read())
    except RequestError as error:
        return f"refused: {error}"


@given(MEMBERS, st.lists(VALUES, min_size=1, max_size=4), st.lists(VALUES, max_size=3), MEMBERS, MEMBERS, SPELLINGS)
def test_a_longer_body_is_parsed_to_the_same(
    head: Any, messages: list[Any], new: list[Any], tail: Any, next_tail: Any, spelling: Any
) -> None:
    """Whatever stands around the messages, and whatever changes behind them."""
    first = parse_body(spell(head, messages, tail, spelling), None)
    body = spell(head, [*messages, *new], next_tail, spelling)
    second = parse_body(body, first.known)
    assert repr(join(first.value["messages"], second)) == repr(parse_object(body))
    if first.known is not None:
        assert second.is_continued
        assert len(second.value["messages"]) == len(new)


@given(st.lists(VALUES, min_size=1, max_size=4), st.lists(VALUES, max_size=2), MEMBERS, st.data())
def test_an_edit_anywhere_changes_no_result(
    messages: list[Any], new: list[Any], tail: Any, data: st.DataObject
) -> None:
    """A byte that is replaced, left out or put in."""
    first = parse_body(spell({}, messages, tail, (",", ":", None)), None)
    body = bytearray(spell({}, [*messages, *new], tail, (",", ":", None)))
    place = data.draw(st.integers(0, len(body) - 1))
    edit = data.draw(st.sampled_from([b"", b"0", b"]", b"[", b'"', b",", b" ", b'],"messages":[', b'],"a":[']))
    body[place : place + data.draw(st.integers(0, 1))] = edit
    known = first.value["messages"]
    assert say(lambda: join(known, parse_body(bytes(body), first.known))) == say(lambda: parse_object(bytes(body)))


def test_a_conversation_is_known_turn_after_turn() -> None:
    """Each part has a hash of its own; new members behind the messages are parsed."""
    messages = [{"role": "user", "content": "a"}]
    parsed = parse_body(spell({"model": "m"}, messages, {"n": 1}, (",", ":", None)), None)
    for number in range(5):
        new = [{"role": "assistant", "content": "ü]}"}, {"role": "user", "content": str(number)}]
        messages += new
        parsed = parse_body(spell({"model": "m"}, messages, {"n": number}, (",", ":", None)), parsed.known)
        assert parsed.is_continued
        assert parsed.value == {"model": "m", "messages": new, "n": number}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(b'{"messages":[{},{}]}', b'{"messages":[{},{"a":1},{}]}', id="another message"),
        pytest.param(b'{"messages":[{},{}]}', b'{"messages":[{}]}', id="fewer messages"),
        pytest.param(b'{"messages":[1]}', b'{"messages":[12]}', id="a longer number"),
        pytest.param(b'{"messages":[1]}', b'{"messages":[1.0]}', id="an equal number"),
        pytest.param(b'{"messages":[{}]}', b'{"messages":[{}.0]}', id="a number behind an object"),
        pytest.param(b'{"messages":[[1]]}', b'{"messages":[[1,2]]}', id="a message that grew"),
        pytest.param(b'{"messages":[]}', b'{"messages":[1]}', id="no messages before"),
        pytest.param(b'{"messages":1}', b'{"messages":[1]}', id="no list before"),
        pytest.param(b"{}", b'{"messages":[1]}', id="nothing before"),
        pytest.param(b'{"a":{"messages":[{}]}}', b'{"a":{"messages":[{},2]}}', id="messages of another value"),
        pytest.param(b'{"messages":[{}],"messages":[2]}', b'{"messages":[{},3],"messages":[2]}', id="messages twice"),
        pytest.param(b'{"messages":[{}]}', b'{"messages":[{},2],"messages":[3]}', id="other messages behind"),
        pytest.param(b'{"messages":[{}]}', b'{"messages":[{},2],"a":[3]}', id="another list behind"),
        pytest.param(
            b'{"a":[{}],"messages":[{}],"a":[2]}', b'{"a":[{}],"messages":[{}],"a":[2,3]}', id="a member twice"
        ),
        pytest.param(b'{"messages":[{"a":"\\ud83d"}]}', b'{"messages":[{"a":"\\ud83d"},1]}', id="half a pair"),
        pytest.param(b'{"messages":[{}]}', b'{"messages":[{},12345678901234567890]}', id="a long number"),
    ],
)
def test_what_is_not_certain_is_parsed_as_a_whole(first: bytes, second: bytes) -> None:
    """In each of these bodies a reader of texts could take one array for another."""
    known = parse_body(first, None)
    before = known.value.get("messages")
    assert say(lambda: join(before, parse_body(second, known.known))) == say(lambda: parse_object(second))


def test_a_large_body_is_parsed_as_a_whole() -> None:
    """It is read in a thread, and looked through before."""
    body = spell({}, ["x" * LARGE_BYTES], {}, (",", ":", None))
    assert parse_body(body, None).known is None
