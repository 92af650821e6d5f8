"""Tool calls out of sampled text, in every family's format.

1. What a family writes, its parser reads back, whatever stands in the values: the format's own markers too.
2. A tag inside a value ends it only where a well-formed rest follows. A forgotten closing tag swallows no parameter.
3. No call reaches into a malformed one beside it, and no text is lost.
4. A parameter keeps its string where its schema allows strings and no other type of what is written.
5. Deltas are together the message, however the ids are cut.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rendering.parsing.test_replies import markers_of, sample
from rendering.standins import standin
from rendering.talk import assistant, call, user
from tablekit import checking_table
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import FAMILIES, ParsedReply, Renderer, parse_completion

Calls = list[tuple[str, JsonObject]]


def build_tool(name: str, properties: Mapping[str, Any]) -> JsonObject:
    parameters = {"type": "object", "properties": dict(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def list_calls(reply: ParsedReply) -> Calls:
    return [(one.name, json.loads(one.arguments)) for one in reply.tool_calls]


# Whatever stands in the values.

TAGS: dict[str, list[str]] = {
    "qwen35": ["<function=look>", "</function>", "<parameter=at>", "<parameter=other>", "</parameter>"],
    "minimax_m25": ['<invoke name="look">', "</invoke>", '<parameter name="at">', "</parameter>"],
    "glm47": ["<arg_key>", "</arg_key>", "<arg_key>at</arg_key><arg_value>", "</arg_value>", "look"],
    "deepseekv32": [
        '<｜DSML｜invoke name="look">',
        "</｜DSML｜invoke>",
        '<｜DSML｜parameter name="at" string="true">',
        "</｜DSML｜parameter>",
    ],
    "kimi25": ["<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>", "{}<|tool_call_end|>"],
}
ENDS: dict[str, str] = {
    "qwen35": r"</parameter>\s*<(/function>|parameter=)|</function>\s*<(/tool_call>|function=)|"
    r"<tool_call>\s*<function=",
    "minimax_m25": r"</parameter>\s*<(/invoke>|parameter name=)|</invoke>\s*<(/minimax:tool_call>|invoke name=)|"
    r"<minimax:tool_call>\s*<invoke name=",
    "glm47": r"</arg_value>\s*(</tool_call>|<arg_key>)|<tool_call>\s*\w+\s*<(/tool_call>|arg_key)",
    "deepseekv32": r"</｜DSML｜parameter>\s*</?｜DSML｜(invoke>|parameter)|</｜DSML｜invoke>\s*</?｜DSML｜|"
    r"<｜DSML｜(function|tool)_calls>\s*<｜DSML｜invoke",
}
"""Tags in a row that may end a value wherever they stand, or begin a call in it: such a text may be two texts."""
OPENINGS = re.compile(r"<parameter=(\w+)>|parameter name=\"(\w+)\"|<arg_key>(\w+)</arg_key><arg_value>")
"""The tags of parameters. Inside of another parameter's value they may stand for a forgotten closing tag."""
LIKE = {
    **dict.fromkeys(["qwen35", "qwen36", "qwen38small", "qwen4exp", "nemotron3"], "qwen35"),
    **dict.fromkeys(["minimax_m25", "minimax_m27"], "minimax_m25"),
    **dict.fromkeys(["deepseekv32", "deepseekv4"], "deepseekv32"),
    **dict.fromkeys(["kimi25", "kimi26"], "kimi25"),
    "glm47": "glm47",
}
"""By family the one whose format it shares."""

SNIPPETS = ["\n", "\n\n", " ", "a", "1", "true", "null", '"', "\\", "{", "}", "😀é中", "\u2028", "</think>", "\t\r"]
LOOK = build_tool(
    "look",
    {"at": {"type": "string"}, "to": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "with": {"type": "array"}},
)


def draw_arguments(data: st.DataObject, renderer: Renderer) -> JsonObject:
    like = LIKE.get(renderer.family.name, "")
    tags = [*TAGS.get(like, []), *markers_of(renderer)]
    text = st.lists(st.sampled_from([*SNIPPETS, *tags, *tags]), max_size=6).map("".join)
    values = {
        "at": text,
        "to": st.one_of(st.none(), text.filter(lambda one: one.strip() not in ("null", "None"))),
        "with": st.lists(st.one_of(text, st.integers(-9, 9), st.none()), max_size=2),
    }
    drawn = data.draw(st.fixed_dictionaries({}, optional=values))
    assume(not any(is_ambiguous(like, key, spell(value)) for key, value in drawn.items()))
    return drawn


def is_ambiguous(like: str, key: str, text: str) -> bool:
    """Whether another reading of a value's text is as good."""
    opened = {next(filter(None, match.groups())) for match in OPENINGS.finditer(text)}
    return bool(like in ENDS and re.search(ENDS[like], text)) or not opened <= {key, "other"}


def spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "default"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 90), max_size=5))
def test_what_a_family_writes_its_parser_reads_whatever_it_says(
    family: str, data: st.DataObject, cuts: Sequence[int]
) -> None:
    renderer = standin(family)
    wanted = [draw_arguments(data, renderer) for _ in range(data.draw(st.integers(1, 3)))]
    calls = [call("look", one, index) for index, one in enumerate(wanted)]
    content = data.draw(st.sampled_from(["", "So:"]))
    prompt, ids = sample(renderer, assistant(content, *calls, reasoning="hm"))
    reply = parse_completion(renderer.parser(prompt, [LOOK]), ids)
    assert list_calls(reply) == [("look", one) for one in wanted]
    assert (reply.reasoning, reply.content) == ("hm", content)
    parser = renderer.parser(prompt, [LOOK])
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    deltas = [*(parser.feed(ids[start:stop].tolist()) for start, stop in pairwise(edges)), parser.finish()]
    assert parser.reply == reply
    assert tuple(one for delta in deltas for one in delta.tool_calls) == reply.tool_calls
    assert ["".join(delta.content for delta in deltas), "".join(delta.reasoning for delta in deltas)] == [content, "hm"]


# Tags inside of values.

WRITE = build_tool("write", {"path": {"type": "string"}, "text": {"type": "string"}, "mode": {"type": "integer"}})


def function(*parameters: str, name: str = "write") -> str:
    return f"<tool_call>\n<function={name}>\n{''.join(parameters)}</function>\n</tool_call>"


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


def parse(family: str, text: str, *tools: JsonObject) -> ParsedReply:
    renderer = standin(family)
    prompt = renderer.render([user("Hi")], [], {}).ids
    is_thinking = renderer.tokenizer.decode(prompt).rstrip().endswith("<think>")
    ids = renderer.tokenizer.encode(f"</think>{text}" if is_thinking else text)
    return parse_completion(renderer.parser(prompt, tools or [WRITE]), ids)


EXAMPLE = function(parameter("path", "x"), parameter("text", "y"))
VALUES = {
    "a closing parameter tag": "Use </parameter> to end it.",
    "one at the end": "the tag is </parameter>",
    "one on a line of its own": "a\n</parameter>\nb",
    "a closing function tag": "a\n</function>\nb",
    "a closing marker": "a</tool_call>b",
    "two of them": "a</tool_call>b</tool_call>c",
    "an opening marker": "use <tool_call> and go on",
    "an opening marker behind a closing one": "</tool_call> and <tool_call>",
    "the end of a function, and text": "a\n</parameter>\n</function>\nb",
    "the end of a call, and text": "a\n</parameter>\n</function>\n</tool_call>\nb",
    "a whole call": f"For example:\n{EXAMPLE}\nis a call.",
    "two whole calls": f"{EXAMPLE}\n{EXAMPLE}\nare calls.",
    "a call at the end": f"For example:\n{EXAMPLE}",
    "the tag of this parameter": "<parameter=text>\nx",
    "the tag of an unknown parameter": "a\n<parameter=color>\nb",
    "the tag of a parameter that follows": "a\n<parameter=path>\nb",
    "empty": "",
    "a line break": "\n",
    "line breaks around it": "\n\na\n\n",
    "a number": "1",
    "null": "null",
}


def test_a_value_may_hold_any_tag() -> None:
    with checking_table() as table:
        for family in ["qwen35", "qwen36", "nemotron3"]:
            for label, value in VALUES.items():
                with table.case(label, family):
                    text = function(parameter("text", value), parameter("path", "p"))
                    reply = parse(family, text)
                    assert (list_calls(reply), reply.content.strip()) == ([("write", {"text": value, "path": "p"})], "")


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_value_may_hold_any_tag_in_one_of_several_calls(value: str) -> None:
    call_text = function(parameter("path", "p"), parameter("text", value))
    reply = parse("qwen35", f"Two:\n\n{call_text}\n{function(parameter('path', 'q'))}<|im_end|>")
    assert list_calls(reply) == [("write", {"path": "p", "text": value}), ("write", {"path": "q"})]
    assert reply.content.strip() == "Two:"


READ: dict[str, tuple[str, str, Calls, str]] = {
    "a forgotten closing tag": (
        "qwen35",
        function("<parameter=path>\n1\n<parameter=text>\n2\n</parameter>\n"),
        [("write", {"path": "1", "text": "2"})],
        "",
    ),
    "two forgotten closing tags": (
        "qwen35",
        function("<parameter=path>\n1\n<parameter=text>\n2\n<parameter=mode>\n3\n</parameter>\n"),
        [("write", {"path": "1", "text": "2", "mode": 3})],
        "",
    ),
    "a forgotten closing tag on one line": (
        "qwen35",
        function("<parameter=path>1<parameter=text>2</parameter>"),
        [("write", {"path": "1", "text": "2"})],
        "",
    ),
    "a forgotten closing tag at the end": (
        "qwen35",
        function("<parameter=path>\n1\n"),
        [("write", {"path": "1"})],
        "",
    ),
    "a forgotten closing tag before another call": (
        "qwen35",
        function("<parameter=path>\n1\n") + "\n" + function(parameter("path", "2")),
        [("write", {"path": "1"}), ("write", {"path": "2"})],
        "",
    ),
    "a forgotten closing tag of a tool that nobody knows": (
        "qwen35",
        function("<parameter=a>\n1\n<parameter=b>\n2\n</parameter>\n", name="other"),
        [("other", {"a": 1, "b": 2})],
        "",
    ),
    "a tag in the words of a tool that nobody knows": (
        "qwen35",
        function(parameter("a", "the <parameter=b> tag"), name="other"),
        [("other", {"a": "the <parameter=b> tag"})],
        "",
    ),
    "both closing tags forgotten": (
        "qwen35",
        "<tool_call>\n<function=write>\n<parameter=path>\n1\n</tool_call>",
        [],
        "<tool_call>\n<function=write>\n<parameter=path>\n1\n</tool_call>",
    ),
    "a malformed call before a good one": (
        "qwen35",
        "<tool_call>\n<function=write>\n<parameter=path>\n1\n</tool_call>\n" + function(parameter("path", "2")),
        [("write", {"path": "2"})],
        "<tool_call>\n<function=write>\n<parameter=path>\n1\n</tool_call>",
    ),
    "a malformed call behind a good one": (
        "qwen35",
        function(parameter("path", "1")) + "\n" + function(parameter("path", "2")).replace("<function=", "<function "),
        [("write", {"path": "1"})],
        function(parameter("path", "2")).replace("<function=", "<function "),
    ),
    "a malformed call behind words": (
        "qwen35",
        function(parameter("path", "1")) + "\nThen:\n" + function("x" + parameter("path", "2")),
        [("write", {"path": "1"})],
        "Then:\n" + function("x" + parameter("path", "2")),
    ),
    "a closing marker too many": (
        "qwen35",
        function(parameter("path", "1")) + "</tool_call>\n" + function(parameter("path", "2")),
        [("write", {"path": "1"}), ("write", {"path": "2"})],
        "</tool_call>",
    ),
    "an opening marker in the answer": (
        "qwen35",
        "I write <tool_call> now:\n\n" + function(parameter("path", "1")),
        [("write", {"path": "1"})],
        "I write <tool_call> now:",
    ),
    "a parameter that comes twice": (
        "qwen35",
        function(parameter("path", "1"), parameter("path", "2")) + "\n" + function(parameter("path", "3")),
        [("write", {"path": "3"})],
        function(parameter("path", "1"), parameter("path", "2")),
    ),
    "a call that is cut": (
        "qwen35",
        function(parameter("path", "1")) + "\n<tool_call>\n<function=write>\n<parameter=path>\n2",
        [("write", {"path": "1"})],
        "<tool_call>\n<function=write>\n<parameter=path>\n2",
    ),
    "words behind a call": (
        "qwen35",
        function(parameter("path", "1")) + "\nDone: </parameter>.",
        [("write", {"path": "1"})],
        "Done: </parameter>.",
    ),
    "a call without parameters": ("qwen35", function(), [("write", {})], ""),
    "two functions in one section": (
        "qwen35",
        "<tool_call>\n<function=a>\n</function>\n<function=b>\n</function>\n</tool_call>",
        [("a", {}), ("b", {})],
        "",
    ),
    "glm: a closing tag in a value": (
        "glm47",
        "<tool_call>write<arg_key>path</arg_key><arg_value>a</arg_value>b</tool_call>c</arg_value></tool_call>",
        [("write", {"path": "a</arg_value>b</tool_call>c"})],
        "",
    ),
    "glm: a forgotten closing tag": (
        "glm47",
        "<tool_call>write<arg_key>path</arg_key><arg_value>1<arg_key>text</arg_key><arg_value>2</arg_value></tool_call>",
        [("write", {"path": "1", "text": "2"})],
        "",
    ),
    "glm: a forgotten closing tag at the end": (
        "glm47",
        "<tool_call>write<arg_key>path</arg_key><arg_value>1</tool_call><tool_call>write</tool_call>",
        [("write", {"path": "1"}), ("write", {})],
        "",
    ),
    "glm: a whole call in a value": (
        "glm47",
        "<tool_call>write<arg_key>text</arg_key><arg_value>As in <tool_call>write<arg_key>path</arg_key>"
        "<arg_value>1</arg_value></tool_call>.</arg_value></tool_call>",
        [
            (
                "write",
                {"text": "As in <tool_call>write<arg_key>path</arg_key><arg_value>1</arg_value></tool_call>."},
            )
        ],
        "",
    ),
    "glm: line breaks between the tags": (
        "glm47",
        "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        [("write", {"path": "1"})],
        "",
    ),
    "minimax: closing tags in a value": (
        "minimax_m25",
        '<minimax:tool_call>\n<invoke name="write">\n<parameter name="text">'
        "a</parameter>b</invoke>c</minimax:tool_call>d</parameter>\n</invoke>\n</minimax:tool_call>",
        [("write", {"text": "a</parameter>b</invoke>c</minimax:tool_call>d"})],
        "",
    ),
    "minimax: forgotten closing tags": (
        "minimax_m25",
        '<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">1\n<parameter name="text">2\n</invoke>\n'
        '<invoke name="write">\n<parameter name="path">3</parameter>\n<parameter name="text">4</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        [("write", {"path": "1", "text": "2"}), ("write", {"path": "3", "text": "4"})],
        "",
    ),
    "dsml: closing tags in a value": (
        "deepseekv32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write">\n<｜DSML｜parameter name="text" string="true">'
        "a</｜DSML｜parameter>b</｜DSML｜invoke>c</｜DSML｜function_calls>d</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
        "</｜DSML｜function_calls>",
        [("write", {"text": "a</｜DSML｜parameter>b</｜DSML｜invoke>c</｜DSML｜function_calls>d"})],
        "",
    ),
    "dsml: closing tags in JSON": (
        "deepseekv4",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write">\n<｜DSML｜parameter name="text" string="false">'
        '["</｜DSML｜parameter>\\n</｜DSML｜invoke>"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        [("write", {"text": ["</｜DSML｜parameter>\n</｜DSML｜invoke>"]})],
        "",
    ),
    "dsml: the end of a call in JSON": (
        "deepseekv4",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write">\n<｜DSML｜parameter name="text" string="false">'
        '["</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>",
        [("write", {"text": ["</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>"]})],
        "",
    ),
    "dsml: a forgotten closing tag": (
        "deepseekv32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="write">\n<｜DSML｜parameter name="mode" string="false">1\n'
        '<｜DSML｜parameter name="text" string="true">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        [("write", {"mode": 1, "text": "2"})],
        "",
    ),
    "json: a closing marker in a string": (
        "qwen3",
        '<tool_call>\n{"name": "write", "arguments": {"text": "a</tool_call>b<tool_call>c"}}\n</tool_call>',
        [("write", {"text": "a</tool_call>b<tool_call>c"})],
        "",
    ),
    "json: a malformed call before a good one": (
        "qwen3",
        '<tool_call>\n{"name": "write", "arguments": {"text": "a}}\n</tool_call>\n'
        '<tool_call>\n{"name": "write", "arguments": {}}\n</tool_call>',
        [("write", {})],
        '<tool_call>\n{"name": "write", "arguments": {"text": "a}}\n</tool_call>',
    ),
    "kimi: markers in a string": (
        "kimi26",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>"
        '{"text": "<|tool_call_end|><|tool_calls_section_end|>"}<|tool_call_end|><|tool_calls_section_end|>',
        [("write", {"text": "<|tool_call_end|><|tool_calls_section_end|>"})],
        "",
    ),
    "harmony: markers in a string": (
        "gptoss",
        "<|channel|>commentary to=functions.write <|constrain|>json<|message|>"
        '{"text": "<|call|><|end|><|start|>"}<|call|>',
        [("write", {"text": "<|call|><|end|><|start|>"})],
        "",
    ),
    "harmony: a malformed call before a good one": (
        "gptoss",
        '<|channel|>commentary to=functions.write<|message|>{"text": "a}<|end|><|start|>assistant<|channel|>commentary '
        'to=functions.write<|message|>{"text": "b"}<|call|>',
        [("write", {"text": "b"})],
        '{"text": "a}',
    ),
    "harmony: an answer behind a call": (
        "gptoss",
        "<|channel|>commentary to=functions.write<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Hi"
        "<|end|>",
        [("write", {})],
        "Hi",
    ),
    "inkling: markers in a string": (
        "inkling",
        'write<|content_invoke_tool_json|>{"name":"write","args":{"text":"<|end_message|><|message_model|>"}}'
        "<|end_message|>",
        [("write", {"text": "<|end_message|><|message_model|>"})],
        "",
    ),
    "inkling: a name that is none": (
        "inkling",
        'write<|content_invoke_tool_json|>{"name":1,"args":{}}<|end_message|>',
        [],
        '{"name":1,"args":{}}',
    ),
}


@pytest.mark.parametrize(("family", "text", "calls", "content"), READ.values(), ids=READ.keys())
def test_calls_are_told_from_text(family: str, text: str, calls: Calls, content: str) -> None:
    reply = parse(family, text)
    assert (list_calls(reply), reply.content.strip()) == (calls, content)


# Types.

ROOT = {"$defs": {"Name": {"type": "string"}}}
STRING_OR_NULL: tuple[Any, ...] = (
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"type": ["string", "null"]},
    {"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]},
    {"oneOf": [{"allOf": [{"$ref": "#/$defs/Name"}, {"minLength": 1}]}, {"const": None}]},
    {"type": "string", "nullable": True},
    {"type": "STRING", "nullable": True},
    {"anyOf": [{"type": "String"}, {"type": "NULL"}]},
    {"type": ["STR", "Null"]},
)


def test_a_string_that_is_no_number_by_its_schema_stays_a_string() -> None:
    with checking_table() as table:
        for text in ["1", "1.50", "true", "True", "[1]", '{"a": 1}', '"quoted"', "1e999", "00", "NaN"]:
            for schema in STRING_OR_NULL:
                for family in ["qwen35", "qwen36", "nemotron3", "minimax_m25", "glm47"]:
                    with table.case(family, repr(schema), repr(text)):
                        assert parse_value(family, schema, text) == text
                        assert parse_value(family, schema, "null") is None


def parse_value(family: str, schema: Any, text: str) -> Any:
    tool = build_tool("write", {"text": schema})
    tool["function"]["parameters"] |= ROOT
    formats = {
        "minimax_m25": '<minimax:tool_call>\n<invoke name="write">\n<parameter name="text">{}</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        "glm47": "<tool_call>write<arg_key>text</arg_key><arg_value>{}</arg_value></tool_call>",
    }
    sampled = formats.get(family, function(parameter("text", "{}"))).replace("{}", text, 1)
    ((_, arguments),) = list_calls(parse(family, sampled, tool))
    return arguments["text"]


SPELLED: dict[str, tuple[Any, str, Any]] = {
    "an enum of strings": ({"enum": ["1", "2", "null"]}, "1", "1"),
    "a null that an enum says is a string": ({"enum": ["1", "2", "null"]}, "null", "null"),
    "a string or a number": ({"type": ["string", "integer"]}, "1", 1),
    "a fraction where only whole numbers are": ({"type": ["string", "integer"]}, "1.5", "1.5"),
    "a fraction where any number is": ({"type": ["string", "number"]}, "1.5", 1.5),
    "a string or a list": ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1]", [1]),
    "a number where a list is": ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "1", "1"),
    "a list that is none": ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "[1", "[1"),
    "a string or a truth": ({"type": ["string", "boolean"]}, "true", True),
    "python's truth": ({"type": ["string", "boolean"]}, "True", True),
    "a truth where a number is": ({"type": ["string", "number"]}, "True", "True"),
    "a number": ({"type": "integer"}, " 7 ", 7),
    "a number in another case": ({"type": ["STRING", "INTEGER"]}, "7", 7),
    "no number where one is": ({"type": "integer"}, "seven", "seven"),
    "unknown": ({}, "7", 7),
    "unknown words": ({}, "seven", "seven"),
    "spaces around a string": ({"type": "string"}, "  a ", "  a "),
    "spaces around a string or null": ({"type": ["string", "null"]}, " 7 ", " 7 "),
}


def test_a_schema_gives_a_text_its_type() -> None:
    with checking_table() as table:
        for label, (schema, text, value) in SPELLED.items():
            with table.case(label):
                found = parse_value("qwen35", schema, text)
                assert (found, type(found)) == (value, type(value))


def test_none_is_null_only_where_the_family_writes_it_so() -> None:
    assert parse_value("qwen35", {"type": ["string", "null"]}, "None") is None
    assert parse_value("qwen36", {"type": ["string", "null"]}, "None") == "None"
    assert parse_value("qwen36", {"type": ["integer", "null"]}, "None") is None


# Cost.

LOOPS = {
    "closing markers": "</tool_call>",
    "opening markers": "<tool_call>",
    "both": "<tool_call></tool_call>",
    "whole ends": "\n</parameter>\n</function>\n</tool_call>",
    "beginnings": "<tool_call>\n<function=write>\n<parameter=text>\n",
    "calls": function(parameter("text", "a")) + "\n",
    "broken calls": function("x" + parameter("text", "a")),
    "parameters": parameter("text", "a"),
    "parameter tags": "<parameter=text>",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_a_model_that_repeats_itself_is_read_in_time(loop: str) -> None:
    """Twice the text takes about twice the time: a search that tries every end would take four times."""
    renderer = standin("qwen35")
    head = "</think>\n\n<tool_call>\n<function=write>\n<parameter=text>\n"

    def measure(times: int) -> float:
        ids = renderer.tokenizer.encode(head + loop * times)
        start = time.process_time()
        parse_completion(renderer.parser(tools=[WRITE]), ids)
        return time.process_time() - start

    measure(10)
    short, long = min(measure(500) for _ in range(3)), min(measure(2000) for _ in range(3))
    assert long < 12 * short + 0.02
