"""Items of replies by their ids.

1. Each item of a reply has an id of its own; a body, a stream and a replay give the same ids.
2. A reference to an item says what the item says, alone or beside whole items; a reply whose items are all referenced
   is the reply.
3. A model that comes back to reasoning behind its text has one more item for each part; the references of all parts
   say what all parts say.
4. An id that names no item of the session is refused by the path of its field, and named.
5. A client that calls a call by the id of its item, in the call and in its result, means that call; any other name of a
   call stays as it came.
6. Neighbouring items that belong to different replies by their ids are a message for each reply; items without such an
   id go with the item before.
"""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialectkit import MESSAGES, TEXTS, call, make_reply
from turnkeeper.dialects import RESPONSES, ParseContext, StreamStart, parse_events
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, Message

USER: JsonObject = {"role": "user", "content": "hi"}
RESPONSE_ID = RESPONSES.build_response_id("0123456789abcdef" * 2)
PATCH: JsonObject = {"type": "custom", "name": "patch"}
FUNCTION: JsonObject = {"type": "function", "name": "f", "parameters": {}}
TOOLS: list[JsonObject] = [PATCH, {"type": "namespace", "name": "mcp", "tools": [FUNCTION]}]
EXTRA: dict[str, JsonObject] = {
    "a custom call": {"role": "assistant", "content": "", "tool_calls": [call("c", "patch", '{"input": "x"}')]},
    "a custom call that is no string": {"role": "assistant", "content": "", "tool_calls": [call("c", "patch", "{")]},
    "a call of a namespace": {"role": "assistant", "content": "so", "tool_calls": [call("c", "mcp__f", "{}")]},
}
REPLIES = {**MESSAGES, **EXTRA}
ALL = pytest.mark.parametrize("message", REPLIES.values(), ids=REPLIES.keys())


def parse(items: list[JsonObject], message: Message, **fields: Any) -> Any:
    context = ParseContext(decode_token=str, find_reply={RESPONSE_ID: message}.get)
    return RESPONSES.parse_request({"input": items, "tools": TOOLS, **fields}, context)


def render(message: JsonObject) -> list[JsonObject]:
    reply = make_reply(message, response_id=RESPONSE_ID)
    return json.loads(parse([USER], message).render_reply(reply))["output"]


def stream(message: JsonObject, *deltas: tuple[str, str]) -> list[JsonObject]:
    """The output of a stream that said these parts of reasoning and content before the reply was whole."""
    events = parse([USER], message).open_stream(StreamStart(response_id=RESPONSE_ID))
    said = b"".join(events.extend(reasoning=reasoning, content=content) for reasoning, content in deltas)
    *_, last = parse_events(said + events.finish(make_reply(message, response_id=RESPONSE_ID)))
    return json.loads(last.data)["response"]["output"]


def refer(item: JsonObject, **members: Any) -> JsonObject:
    return {"type": "item_reference", "id": item["id"], **members}


def norm(message: Message) -> Message:
    """Without the empty list of calls that engines may give."""
    return {name: value for name, value in message.items() if value != []}


@ALL
def test_ids_are_unique_and_the_same_streamed_or_not(message: JsonObject) -> None:
    ids = [item["id"] for item in render(message)]
    assert ids == [item["id"] for item in stream(message)]
    assert len(set(ids)) == len(ids)


@ALL
def test_references_to_all_items_are_the_reply(message: JsonObject) -> None:
    items = render(message)
    for choice in product([False, True], repeat=len(items)):
        given_items = [refer(item) if by_id else item for item, by_id in zip(items, choice, strict=True)]
        assert norm(parse([USER, *given_items, USER], message).request.messages[1]) == norm(message)


@ALL
def test_a_reference_may_leave_out_its_type(message: JsonObject) -> None:
    for absent in ({"id": item["id"]} for item in render(message)):
        assert (
            parse([USER, absent, USER], message).request
            == parse([USER, refer(absent), USER], message).request
            == parse([USER, {**absent, "type": None}, USER], message).request
        )


PARTS = st.lists(st.tuples(st.sampled_from(["reasoning", "content"]), TEXTS.filter(bool)), min_size=1, max_size=5)


@given(parts=PARTS, has_call=st.booleans())
def test_a_reply_in_many_parts_is_the_sum_of_their_references(parts: list[tuple[str, str]], has_call: bool) -> None:
    said = {kind: "".join(text for each, text in parts if each == kind) for kind in ("reasoning", "content")}
    message: JsonObject = {"role": "assistant", "content": said["content"]}
    message |= {"reasoning_content": said["reasoning"]} if said["reasoning"] else {}
    message |= {"tool_calls": [call("c", "f", "{}")]} if has_call else {}
    deltas = [(text, "") if kind == "reasoning" else ("", text) for kind, text in parts]
    items = stream(message, *deltas)
    assert len({item["id"] for item in items}) == len(items)
    assert parse([USER, *map(refer, items), USER], message).request.messages[1] == message
    assert {item["id"] for item in render(message)} <= {item["id"] for item in items}


EVERYTHING = MESSAGES["everything"]
HEX = RESPONSE_ID.removeprefix("resp_")
UNKNOWN: dict[str, str] = {
    "nothing of ours": "rs_68a1",
    "another reply": f"msg_{'f' * 32}_0",
    "a reply's own id": RESPONSE_ID,
    "no place": f"msg_{HEX}",
    "a text too many": f"msg_{HEX}_1",
    "reasoning too many": f"rs_{HEX}_1",
    "a call too many": f"fc_{HEX}_2",
    "a part of a call": f"fc_{HEX}_0.1",
    "a place with a zero in front": f"fc_{HEX}_01",
    "a place below zero": f"fc_{HEX}_-1",
    "a place of 20 digits": f"fc_{HEX}_{'1' * 20}",
    "another kind": f"ws_{HEX}_0",
    "upper case": f"MSG_{HEX}_0",
    "an end of line": f"msg_{HEX}_0\n",
    "a result": f"fco_{HEX}_0",
    "a user's message": "msg_user_1",
    "a thousand letters": "m" * 1000,
}


@pytest.mark.parametrize("item_id", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_id_is_refused_and_named(item_id: str) -> None:
    with pytest.raises(RequestError, match=r"input\[1\].id .* names no item") as refused:
        parse([USER, {"type": "item_reference", "id": item_id}, USER], EVERYTHING)
    assert repr(item_id[:100]) in refused.value.message
    assert refused.value.facts["param"] == "input[1].id"


ABSENT: dict[str, tuple[JsonObject, str]] = {
    "reasoning that was not": (MESSAGES["text"], f"rs_{HEX}_0"),
    "a text beside calls that was not": (MESSAGES["calls only"], f"msg_{HEX}_0"),
    "a call that was not": (MESSAGES["text"], f"fc_{HEX}_0"),
}


@pytest.mark.parametrize(("message", "item_id"), ABSENT.values(), ids=ABSENT.keys())
def test_an_item_that_a_reply_did_not_have_is_unknown(message: JsonObject, item_id: str) -> None:
    assert item_id not in {item["id"] for item in render(message)}
    with pytest.raises(RequestError, match="names no item"):
        parse([USER, {"type": "item_reference", "id": item_id}, USER], message)


CALL_IDS: dict[str, tuple[str, str]] = {
    "the item of the first call": (f"fc_{HEX}_0", "c1"),
    "the item of the second call": (f"fc_{HEX}_1", "c2"),
    "the item of a custom call": (f"ctc_{HEX}_1", "c2"),
    "the item of a raw custom call": (f"ctcraw_{HEX}_0", "c1"),
    "the call's own id": ("c1", "c1"),
    "a name of the client's own": ("call_7", "call_7"),
    "an item of another session": (f"fc_{'f' * 32}_0", f"fc_{'f' * 32}_0"),
    "a call too many": (f"fc_{HEX}_2", f"fc_{HEX}_2"),
    "the item of the text": (f"msg_{HEX}_0", f"msg_{HEX}_0"),
    "the item of the reasoning": (f"rs_{HEX}_0", f"rs_{HEX}_0"),
    "an item as another service names it": ("fc_68a1", "fc_68a1"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("given_id", "expected"), CALL_IDS.values(), ids=CALL_IDS.keys())
def test_a_call_may_be_called_by_its_item(given_id: str, expected: str) -> None:
    stored = {"role": "assistant", "content": "t", "tool_calls": [call("c1", "f", "{}"), call("c2", "f", "{}")]}
    said: JsonObject = {"type": "function_call", "call_id": given_id, "name": "f", "arguments": "{}"}
    result: JsonObject = {"type": "function_call_output", "call_id": given_id, "output": "3"}
    _, replayed, answer = parse([USER, said, result], stored).request.messages
    assert (replayed["tool_calls"][0]["id"], answer["tool_call_id"]) == (expected, expected)


OTHER = "f" * 32
NEIGHBOURS: dict[str, tuple[list[JsonObject], list[str]]] = {
    "texts of two replies": ([{"id": f"msg_{HEX}_0", "text": "a"}, {"id": f"msg_{OTHER}_0", "text": "b"}], ["a", "b"]),
    "texts of one reply": ([{"id": f"msg_{HEX}_0", "text": "a"}, {"id": f"msg_{HEX}_0.1", "text": "b"}], ["ab"]),
    "texts without ids": ([{"text": "a"}, {"text": "b"}], ["ab"]),
    "ids of another service": ([{"id": "msg_1", "text": "a"}, {"id": "msg_2", "text": "b"}], ["ab"]),
    "an id that is no text": ([{"id": 1, "text": "a"}, {"id": f"msg_{OTHER}_0", "text": "b"}], ["ab"]),
    "one without an id behind a reply": (
        [{"id": f"msg_{HEX}_0", "text": "a"}, {"text": "b"}, {"id": f"msg_{OTHER}_0", "text": "c"}],
        ["ab", "c"],
    ),
    "one without an id before a reply": ([{"text": "a"}, {"id": f"msg_{HEX}_0", "text": "b"}], ["ab"]),
    "replies in turns": (
        [{"id": f"msg_{each}_0", "text": text} for each, text in ((HEX, "a"), (OTHER, "b"), (HEX, "c"))],
        ["a", "b", "c"],
    ),
}


@pytest.mark.parametrize(("items", "expected"), NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_items_of_different_replies_are_different_messages(items: list[JsonObject], expected: list[str]) -> None:
    given_items = [
        {
            "type": "message",
            "role": "assistant",
            "content": item["text"],
            **({"id": item["id"]} if "id" in item else {}),
        }
        for item in items
    ]
    _, *said, _ = parse([USER, *given_items, USER], EVERYTHING).request.messages
    assert [message["content"] for message in said] == expected


def test_references_to_different_replies_are_different_messages() -> None:
    replies = {
        RESPONSE_ID: {"role": "assistant", "content": "a"},
        f"resp_{OTHER}": {"role": "assistant", "content": "b"},
    }
    items = [{"type": "item_reference", "id": f"msg_{each}_0"} for each in (HEX, OTHER)]
    context = ParseContext(decode_token=str, find_reply=replies.get)
    _, *said, _ = RESPONSES.parse_request({"input": [USER, *items, USER]}, context).request.messages
    assert said == list(replies.values())
