"""Tools that are loaded later: ``defer_loading`` and ``tool_reference`` in Anthropic Messages.

1. A deferred tool is not among the tools of the prompt. A reference in a tool result writes its definition there, in
   one spelling, and from then on the policy may call the tool.
2. A definition stands on a line of its own, beside text and other definitions; the text depends on the tool alone.
3. A reference to a tool that the request does not have, or that runs on a server of its own, is the name, with a note.
4. A choice of tools counts loaded tools. What is malformed is refused by the path of its field.
"""

import json
from typing import Any

import pytest

from dialectkit import CONTEXT
from turnkeeper.core import TurnRequest, build_query
from turnkeeper.dialects import MESSAGES
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject

USER: JsonObject = {"role": "user", "content": "hi"}
USE: JsonObject = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "search", "input": {}}]}
SEARCH: JsonObject = {"name": "search", "input_schema": {"type": "object"}}
SCHEMA: JsonObject = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": ["é", 1]}}}
SERVER: JsonObject = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}


def deferred(name: str, **members: Any) -> JsonObject:
    return {"name": name, "description": f"does {name}", "input_schema": SCHEMA, "defer_loading": True, **members}


def define(name: str) -> str:
    """The definition in its one spelling."""
    schema = '{"properties": {"a": {"enum": ["é", 1]}, "b": {"type": "string"}}, "type": "object"}'
    function = f'{{"name": "{name}", "description": "does {name}", "parameters": {schema}}}'
    return f'{{"type": "function", "function": {function}}}'


def refer(name: Any) -> JsonObject:
    return {"type": "tool_reference", "tool_name": name}


def found(*blocks: JsonObject, call_id: str = "c") -> JsonObject:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": list(blocks)}]}


def parse(*messages: JsonObject, tools: list[JsonObject], **fields: Any) -> TurnRequest:
    body = {"messages": list(messages or (USER,)), "max_tokens": 5, "tools": tools, **fields}
    return MESSAGES.parse_request(body, CONTEXT).request


def names(tools: tuple[JsonObject, ...]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def test_a_deferred_tool_waits_for_its_reference() -> None:
    request = parse(tools=[SEARCH, deferred("g"), deferred("h")])
    assert (names(request.tools), request.loaded_tools) == (["search"], ())
    assert request.callable_tools == request.tools


def test_a_reference_loads_a_tool_and_writes_its_definition() -> None:
    request = parse(USER, USE, found(refer("g")), tools=[SEARCH, deferred("g"), deferred("h")])
    assert (names(request.tools), names(request.loaded_tools)) == (["search"], ["g"])
    assert names(request.callable_tools) == ["search", "g"]
    assert request.messages[-1] == {"role": "tool", "tool_call_id": "c", "content": define("g")}
    assert json.loads(define("g")) == request.loaded_tools[0]
    assert request.notes == ()


def test_what_makes_two_contexts_the_same_does_not_count_deferred_tools() -> None:
    digests = {
        build_query(parse(*messages, tools=tools)).context_digest
        for messages in ([USER], [USER, USE, found(refer("g"))])
        for tools in ([SEARCH], [SEARCH, deferred("g")], [deferred("h"), SEARCH, deferred("g")])
    }
    assert len(digests) == 1
    other = parse(tools=[SEARCH, {**deferred("g"), "defer_loading": False}])
    assert build_query(other).context_digest not in digests


CONTENTS: dict[str, tuple[list[JsonObject], str]] = {
    "two": ([refer("g"), refer("h")], f"{define('g')}\n{define('h')}"),
    "the other order": ([refer("h"), refer("g")], f"{define('h')}\n{define('g')}"),
    "one twice": ([refer("g"), refer("g")], f"{define('g')}\n{define('g')}"),
    "text in front": ([{"type": "text", "text": "Found:"}, refer("g")], f"Found:\n{define('g')}"),
    "text behind": ([refer("g"), {"type": "text", "text": "That is all."}], f"{define('g')}\nThat is all."),
    "texts, as ever": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
    "empty text": ([{"type": "text", "text": ""}, refer("g"), {"type": "text", "text": ""}], define("g")),
    "a cache mark": ([{**refer("g"), "cache_control": {"type": "ephemeral"}}], define("g")),
    "none": ([], ""),
}


@pytest.mark.parametrize(("blocks", "text"), CONTENTS.values(), ids=CONTENTS.keys())
def test_a_definition_stands_on_a_line_of_its_own(blocks: list[JsonObject], text: str) -> None:
    request = parse(USER, USE, found(*blocks), tools=[SEARCH, deferred("g"), deferred("h")])
    assert request.messages[-1]["content"] == text


SPELLINGS: dict[str, JsonObject] = {
    "keys of the schema in another order": {
        "input_schema": {"properties": {"a": {"enum": ["é", 1]}, "b": {"type": "string"}}, "type": "object"}
    },
    "a cache mark": {"cache_control": {"type": "ephemeral"}},
    "a type": {"type": "custom"},
    "what only Anthropic reads": {"eager_input_streaming": True, "allowed_callers": ["direct"]},
    "not deferred": {"defer_loading": False},
    "null": {"defer_loading": None},
}


@pytest.mark.parametrize("members", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_a_definition_depends_on_nothing_but_the_tool(members: JsonObject) -> None:
    request = parse(USER, USE, found(refer("g")), tools=[{**deferred("g"), **members}, SEARCH])
    assert request.messages[-1]["content"] == define("g")


def test_each_loaded_tool_is_offered_once_in_the_order_of_references() -> None:
    again = found(refer("g"), refer("h"), call_id="d")
    tools = [deferred("g"), SEARCH, deferred("h"), deferred("g", description="another")]
    request = parse(USER, USE, found(refer("h")), USE, again, tools=tools)
    assert names(request.loaded_tools) == ["h", "g"]
    assert request.loaded_tools[1]["function"]["description"] == "does g"


UNKNOWN: dict[str, list[JsonObject]] = {
    "no such tool": [SEARCH],
    "no tools": [],
    "a server's tool": [SEARCH, {"type": "web_search_20250305", "name": "g"}],
    "a server's tool that is deferred": [{"type": "mcp_toolset", "name": "g", "defer_loading": True}],
}


@pytest.mark.parametrize("tools", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_a_reference_to_an_unknown_tool_is_its_name_with_a_note(tools: list[JsonObject]) -> None:
    request = parse(USER, USE, found(refer("g"), refer("g")), tools=tools)
    assert request.messages[-1]["content"] == "g\ng"
    assert request.loaded_tools == ()
    assert [note for note in request.notes if "reference" in note] == [
        "wrote the reference to 'g' as a name: tools has no such function"
    ]


def test_a_search_that_runs_on_a_server_is_left_out_with_a_note() -> None:
    request = parse(tools=[SERVER, deferred("g")])
    assert request.callable_tools == ()
    assert request.notes == ("left out tools[0]: 'tool_search_tool_regex_20251119' runs on a server of its own",)


CHOICES: dict[str, tuple[list[JsonObject], list[JsonObject], JsonObject]] = {
    "nothing is loaded": ([USER], [deferred("g")], {}),
    "all that is offered is loaded": ([USER, USE, found(refer("g"))], [deferred("g")], {"tool_choice": "required"}),
    "one is not deferred": ([USER], [SEARCH, deferred("g")], {"tool_choice": "required"}),
}


@pytest.mark.parametrize(("messages", "tools", "forwarded"), CHOICES.values(), ids=CHOICES.keys())
def test_a_choice_of_tools_counts_loaded_tools(
    messages: list[JsonObject], tools: list[JsonObject], forwarded: JsonObject
) -> None:
    assert parse(*messages, tools=tools, tool_choice={"type": "any"}).forwarded == forwarded


REFUSED: dict[str, tuple[list[JsonObject], list[JsonObject], str]] = {
    "reference without a name": ([found({"type": "tool_reference"})], [SEARCH], r"content\[0\].tool_name"),
    "reference by a number": ([found(refer(3))], [SEARCH], r"content\[0\].tool_name"),
    "reference by nothing": ([found(refer(""))], [SEARCH], r"content\[0\].tool_name must not be empty"),
    "reference of a user": ([{"role": "user", "content": [refer("g")]}], [deferred("g")], "'tool_reference'"),
    "reference of an assistant": ([{"role": "assistant", "content": [refer("g")]}, USER], [], "'tool_reference'"),
    "deferred by a text": ([USER], [{**SEARCH, "defer_loading": "yes"}], "defer_loading must be true or false"),
    "deferred without a name": ([USER], [{"input_schema": {}, "defer_loading": True}], r"tools\[0\].name"),
    "deferred with a bad schema": ([USER], [deferred("g", input_schema=[])], r"tools\[0\].input_schema"),
}


@pytest.mark.parametrize(("messages", "tools", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_malformed_is_refused(messages: list[JsonObject], tools: list[JsonObject], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse(*messages, tools=tools)
