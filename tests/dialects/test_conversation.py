"""Canonical messages and tools.

1. A message keeps its keys and spelling; every role stays as it was sent; arguments given as an object become text.
2. What is malformed is refused by the path of its field.
3. Results of parallel calls stand in the order of the calls, in whatever order they came.
"""

from typing import Any

import pytest

from turnkeeper.choices import OnImage
from turnkeeper.dialects.chat.request import parse_messages, parse_tools
from turnkeeper.dialects.conversation import order_results
from turnkeeper.dialects.images import ImageFilter
from turnkeeper.errors import RequestError

REFUSED = ImageFilter(OnImage.REFUSE)
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1.0}'}}

BAD_MESSAGES: dict[str, tuple[Any, str]] = {
    "missing": (None, "messages must be a list"),
    "object": ({}, "messages must be a list"),
    "empty": ([], "an empty list"),
    "null": ([None], r"messages\[0\] must be an object, got null"),
    "no role": ([{"content": "x"}], r"messages\[0\].role"),
    "unknown role": ([{"role": "user", "content": "x"}, {"role": "robot"}], r"messages\[1\].role .*'robot'"),
    "role of another kind": ([{"role": ["user"]}], r"messages\[0\].role"),
    "number as content": ([{"role": "user", "content": 3}], r"messages\[0\].content .*a number"),
    "image": ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\].type must be text"),
    "part without text": ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text"),
    "part as string": ([{"role": "user", "content": ["x"]}], r"content\[0\] must be an object"),
    "reasoning as list": ([{"role": "assistant", "reasoning_content": []}], "reasoning_content"),
    "function_call": ([{"role": "assistant", "function_call": {"name": "f"}}], "send tool_calls"),
    "calls of a user": ([{"role": "user", "content": "", "tool_calls": [CALL]}], "assistant message"),
    "calls as object": ([{"role": "assistant", "tool_calls": {"a": 1}}], "tool_calls must be a list"),
    "call without function": ([{"role": "assistant", "tool_calls": [{"id": "c"}]}], r"tool_calls\[0\].function"),
    "call with a number as id": ([{"role": "assistant", "tool_calls": [{**CALL, "id": 3}]}], r"tool_calls\[0\].id"),
    "call without name": ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "function.name"),
    "arguments as list": (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": []}}]}],
        "function.arguments",
    ),
}


@pytest.mark.parametrize(("value", "reason"), BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
def test_a_malformed_message_is_refused_by_the_path_of_its_field(value: object, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse_messages(value, REFUSED)


def test_a_message_keeps_its_keys_and_spelling() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "x": 1}
    assert parse_messages([message], REFUSED) == (message,)


def test_developer_stays_as_it_was_sent() -> None:
    assert parse_messages([{"role": "developer", "content": "x"}], REFUSED) == ({"role": "developer", "content": "x"},)


def test_arguments_given_as_an_object_become_text() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"a": "中"}}}
    (message,) = parse_messages([{"role": "assistant", "tool_calls": [call]}], REFUSED)
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": "中"}'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "tools must be a list"),
        ([None], r"tools\[0\] must be an object"),
        ([{"type": "web_search"}], r"tools\[0\].type must be function"),
        ([{"type": "function"}], r"tools\[0\].function must be an object"),
        ([{"type": "function", "function": {"name": ""}}], r"tools\[0\].function.name"),
    ],
    ids=["object", "null entry", "hosted", "no function", "no name"],
)
def test_a_malformed_tool_is_refused_by_the_path_of_its_field(value: object, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse_tools(value)


def test_null_is_no_tools() -> None:
    assert parse_tools(None) == ()


def calls(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": each, "function": {"name": "f"}} for each in ids]}


def results(*ids: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": each, "content": each} for each in ids]


RUNS: dict[str, tuple[list[str], list[str]]] = {
    "in order": (["a", "b"], ["a", "b"]),
    "reversed": (["c", "b", "a"], ["a", "b", "c"]),
    "some": (["c", "a"], ["a", "c"]),
    "a stranger": (["b", "x", "a"], ["b", "x", "a"]),
    "one twice": (["b", "b", "a"], ["b", "b", "a"]),
}


@pytest.mark.parametrize(("came", "stands"), RUNS.values(), ids=RUNS.keys())
def test_results_stand_in_the_order_of_their_calls(came: list[str], stands: list[str]) -> None:
    user = {"role": "user", "content": "u"}
    messages = [user, calls("a", "b", "c"), *results(*came), calls("b", "a"), *results("a"), user, *results("z", "y")]
    expected = [user, calls("a", "b", "c"), *results(*stands), calls("b", "a"), *results("a"), user, *results("z", "y")]
    assert list(order_results(messages)) == expected
