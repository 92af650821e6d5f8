"""Requests that repeat the one before them are read to what reading all of it gives.

1. Over random conversations that go on, with edits anywhere, in every dialect.
2. Only new messages are read where a conversation goes on, and all where that is not certain.
3. An error names the field by its place in the whole body.
"""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialectkit import CONTEXT
from turnkeeper.core import Query, build_query
from turnkeeper.dialects import CHAT, DIALECTS, MESSAGES, Dialect
from turnkeeper.dialects.repetition import KnownRequest, ReadRequest, read_request
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject

TEXTS = st.sampled_from(["", "a", "b", "ü", '"messages":[', "]}"])
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2)
IDS = st.sampled_from(["c0", "c1"])


def calls_of(ids: list[str]) -> list[JsonObject]:
    return [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]


CHAT_MESSAGES = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, TEXTS | PARTS),
    st.builds(lambda text: {"role": "system", "content": text}, TEXTS),
    st.builds(lambda text: {"role": "assistant", "content": text, "reasoning": "r"}, TEXTS),
    st.builds(lambda ids: {"role": "assistant", "content": None, "tool_calls": calls_of(ids)}, st.lists(IDS)),
    st.builds(lambda text, each: {"role": "tool", "content": text, "tool_call_id": each}, TEXTS, IDS),
    st.just({"role": "nobody"}),
)
BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
    st.builds(lambda each, text: {"type": "tool_result", "tool_use_id": each, "content": text}, IDS, TEXTS),
)
SAID = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "x"}, TEXTS),
    st.builds(lambda each: {"type": "tool_use", "id": each, "name": "f", "input": {"a": 1}}, IDS),
)
ANTHROPIC_MESSAGES = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, TEXTS | st.lists(BLOCKS, max_size=2)),
    st.builds(lambda content: {"role": "assistant", "content": content}, TEXTS | st.lists(SAID, max_size=2)),
)
ITEMS: dict[str, st.SearchStrategy[JsonObject]] = {"chat": CHAT_MESSAGES, "messages": ANTHROPIC_MESSAGES}
TOOL: JsonObject = {"type": "function", "function": {"name": "f", "parameters": {}}}
FIELDS: dict[str, list[JsonObject]] = {
    "chat": [{}, {"model": "m", "store": True}, {"tools": [TOOL]}, {"extra_body": {"messages": []}}, {"max_tokens": 9}],
    "messages": [{}, {"system": "s"}, {"system": "x-anthropic-billing-header: 1\ns"}, {"max_tokens": 9}],
}


def know(dialect: Dialect, read: ReadRequest) -> KnownRequest | None:
    """What a session keeps of a request."""
    request = read.call.request
    query = build_query(request) if read.query is None else read.query
    if read.body is None:
        return None
    return KnownRequest(dialect=dialect.name, body=read.body, query=query, notes=request.notes)


def try_read(body: bytes, dialect: Dialect, known: KnownRequest | None) -> ReadRequest | RequestError:
    """The request, or why it is refused."""
    try:
        return read_request(body, dialect, CONTEXT, known)
    except RequestError as error:
        return error


def show(read: ReadRequest | RequestError) -> Any:
    """All that a request, or its refusal, says."""
    if isinstance(read, RequestError):
        return str(read), read.facts
    request = read.call.request
    query: Query = build_query(request) if read.query is None else read.query
    said = {name: getattr(request, name) for name in request.__dataclass_fields__ if name != "messages"}
    return said, read.messages, query, read.call.wants_stream


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=lambda dialect: dialect.name)
@given(st.data())
def test_what_is_known_changes_no_request(dialect: Dialect, data: st.DataObject) -> None:
    """Messages are added, and now and then changed, left out or asked for with other fields."""
    items, fields = ITEMS[dialect.name], st.sampled_from(FIELDS[dialect.name])
    messages, known = data.draw(st.lists(items, min_size=1, max_size=3)), None
    said = data.draw(fields)
    for _ in range(3):
        is_first = data.draw(st.booleans())
        body = orjson.dumps({"messages": messages, **said} if is_first else {**said, "messages": messages})
        read = try_read(body, dialect, known)
        assert show(read) == show(try_read(body, dialect, None))
        if isinstance(read, ReadRequest):
            known = know(dialect, read)
        match data.draw(st.sampled_from(["add", "add", "add", "change", "cut", "fields"])):
            case "change":
                messages = [*messages]
                messages[data.draw(st.integers(0, len(messages) - 1))] = data.draw(items)
            case "cut":
                messages = messages[: data.draw(st.integers(1, len(messages)))]
            case "fields":
                said = data.draw(fields)
            case _:
                messages = [*messages, *data.draw(st.lists(items, max_size=3))]


USER, REPLY = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}


def read_second(dialect: Dialect, new: list[JsonObject], **fields: Any) -> ReadRequest:
    """The second request of a conversation that began with the user."""
    first = read_request(orjson.dumps({"messages": [USER]}), dialect, CONTEXT)
    body = orjson.dumps({"messages": [USER, *new], **fields})
    return read_request(body, dialect, CONTEXT, know(dialect, first))


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=lambda dialect: dialect.name)
def test_only_new_messages_are_read(dialect: Dialect) -> None:
    """The known ones are the very objects that the session has."""
    read = read_second(dialect, [REPLY, USER], max_tokens=7)
    assert len(read.call.request.messages) == 2
    assert len(read.messages) == 3
    assert read.call.request.sampling["max_tokens"] == 7


@pytest.mark.parametrize(
    ("new", "fields"),
    [
        pytest.param([{"role": "tool", "content": "", "tool_call_id": "c"}], {}, id="a result first"),
        pytest.param([REPLY, USER], {"tools": [TOOL]}, id="other tools"),
        pytest.param([REPLY, USER], {"store": True}, id="another note"),
        pytest.param([REPLY, USER], {"extra_body": {"n": 1}}, id="nested fields"),
        pytest.param([], {}, id="no message"),
    ],
)
def test_what_depends_on_known_messages_is_read_with_them(new: list[JsonObject], fields: JsonObject) -> None:
    assert len(read_second(CHAT, new, **fields).call.request.messages) == 1 + len(new)


def test_an_error_names_the_message_by_its_place() -> None:
    with pytest.raises(RequestError, match=r"messages\[2\].role"):
        read_second(CHAT, [REPLY, {"role": "nobody"}])


def test_another_dialect_knows_nothing_of_it() -> None:
    known = know(CHAT, read_request(orjson.dumps({"messages": [USER]}), CHAT, CONTEXT))
    for dialect in DIALECTS:
        if dialect is not CHAT and dialect.repeats_messages:
            read = read_request(orjson.dumps({"messages": [USER, REPLY, USER]}), dialect, CONTEXT, known)
            assert len(read.call.request.messages) == 3
