"""Replies in every family's format.

1. What a family writes, its parser reads back: reasoning, content, calls with equal arguments.
2. The result does not depend on the chunking, whatever is sampled.
3. Letters are never lost: all of them are reasoning, content or part of a call.
4. Arguments that a format spells as JSON keep the sampled spelling.
"""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendering.standins import standin
from rendering.strategies import arguments, spoken
from rendering.talk import LOOK, assistant, call, user
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import FAMILIES, ParsedReply, Renderer, parse_completion


def sample(renderer: Renderer, message: Message) -> tuple[TokenIds, TokenIds]:
    """A prompt, and a completion that says this message."""
    effective = renderer.validate([user("Hi")], [], {})
    prompt = renderer.render([user("Hi")], [], {}).ids
    opened = renderer.tokenizer.decode(prompt)
    whole = renderer.text_renderer.render([user("Hi"), message], [], effective, add_generation_prompt=False)
    assert whole.startswith(opened)
    return prompt, renderer.tokenizer.encode(whole[len(opened) :].rstrip("\n"))


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "default"])
@settings(max_examples=20, deadline=None)
@given(reasoning=spoken, content=st.one_of(st.just(""), spoken), calls=st.lists(arguments, max_size=2))
def test_what_a_family_writes_its_parser_reads(
    family: str, reasoning: str, content: str, calls: list[JsonObject]
) -> None:
    renderer = standin(family)
    if not content and not calls:
        content = "fine"
    wanted = [call("look", one, index) for index, one in enumerate(calls)]
    prompt, ids = sample(renderer, assistant(content, *wanted, reasoning=reasoning))
    reply = parse_completion(renderer.parser(prompt, [schema_of(calls)]), ids)
    assert (reply.reasoning, reply.content) == (reasoning, content)
    assert [json.loads(one.arguments) for one in reply.tool_calls] == calls
    assert {one.name for one in reply.tool_calls} <= {"look"}


def schema_of(calls: list[JsonObject]) -> JsonObject:
    """A tool whose schema gives each argument the type that the calls use; formats that quote nothing need it."""
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", type(None): "null"}
    found: dict[str, list[str]] = {}
    for one in calls:
        for key, value in one.items():
            found.setdefault(key, []).append(kinds[type(value)])
    properties = {key: {"type": names[0] if len(set(names)) == 1 else names} for key, names in found.items()}
    return {"type": "function", "function": {"name": "look", "parameters": {"properties": properties}}}


PIECES = (
    "a",
    "\n",
    " ",
    "{",
    '{"at": 1}',
    "look",
    "😀é中",
    "functions.look:0",
    "to=functions.look",
    "analysis",
    "final",
)


def markers_of(renderer: Renderer) -> list[str]:
    """Everything a parser of the family may watch for."""
    family = renderer.family
    found = [*family.stop_markers]
    if family.thinking:
        found += [family.thinking.opening, family.thinking.closing]
    if family.tools:
        found += [family.tools.opening, family.tools.closing]
    if family.block_format:
        blocks = family.block_format
        found += [*blocks.starts, *blocks.bodies, *blocks.ends, *blocks.inner]
    return found


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_chunks_do_not_matter(family: str, data: st.DataObject) -> None:
    renderer = standin(family)
    snippets = st.sampled_from([*PIECES, *markers_of(renderer)])
    text = "".join(data.draw(st.lists(snippets, max_size=10)))
    prompt = renderer.render([user("Hi")], [LOOK], {}).ids
    ids = renderer.tokenizer.encode(text).tolist()
    whole = parse_completion(renderer.parser(prompt, [LOOK]), freeze_ids(ids))
    cuts = sorted(min(cut, len(ids)) for cut in data.draw(st.lists(st.integers(0, 40), max_size=5)))
    parser = renderer.parser(prompt, [LOOK])
    deltas = [parser.feed(ids[start:stop]) for start, stop in pairwise([0, *cuts, len(ids)])]
    deltas.append(parser.finish())
    assert parser.reply == whole
    assert "".join(delta.content for delta in deltas) == whole.content
    assert "".join(delta.reasoning for delta in deltas) == (whole.reasoning or "")


BARE_NAMES = {"glm47", "glm53"}
"""Families in whose format the name of a function alone, between the tags of a call, is a call without arguments."""
TAGGED = [name for name, family in FAMILIES.items() if family.block_format is None]


@pytest.mark.parametrize("family", TAGGED)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_letters_are_never_lost(family: str, data: st.DataObject) -> None:
    """Every letter comes out: as text, or as the name of a call, which in GLM's format may stand alone between tags.

    In no other format can these pieces make a well-formed call.
    """
    renderer = standin(family)
    snippets = st.sampled_from(["ü", "é", "中 é", "\n", *markers_of(renderer)])
    text = "".join(data.draw(st.lists(snippets, max_size=8)))
    prompt = renderer.render([user("Hi")], [], {}).ids
    reply = parse_completion(renderer.parser(prompt), renderer.tokenizer.encode(text))
    assert not reply.tool_calls or family in BARE_NAMES
    said = (reply.reasoning or "") + reply.content + "".join(each.name + each.arguments for each in reply.tool_calls)
    assert sorted(letters(said)) == sorted(letters(text))


def test_a_name_alone_between_tags_is_a_call_in_the_format_of_glm_only() -> None:
    """``<tool_call>name</tool_call>``: a call without arguments there, text in every other format."""
    found: set[str] = set()
    for family in TAGGED:
        renderer = standin(family)
        prompt = renderer.render([user("Hi")], [], {}).ids
        ids = renderer.tokenizer.encode("</think><tool_call>ü</tool_call>")
        if parse_completion(renderer.parser(prompt), ids).tool_calls:
            found.add(family)
    assert found == BARE_NAMES


def letters(text: str) -> str:
    return "".join(one for one in text if one in "üé中")


SPELLED = {
    "qwen3": '<tool_call>\n{"name": "look", "arguments": {"at":  1.0}}\n</tool_call>',
    "kimi26": (
        "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.look:3<|tool_call_argument_begin|>"
        '{"at":  1.0}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "gptoss": '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at":  1.0}<|call|>',
    "inkling": 'look<|content_invoke_tool_json|>{"name":"look","args":{"at":  1.0}}<|end_message|>',
}


@pytest.mark.parametrize("family", SPELLED)
def test_json_arguments_keep_the_sampled_spelling(family: str) -> None:
    reply = parse_text(standin(family), SPELLED[family])
    assert [(one.name, one.arguments) for one in reply.tool_calls] == [("look", '{"at":  1.0}')]
    assert reply.tool_calls[0].id == ("functions.look:3" if family == "kimi26" else "")


def parse_text(renderer: Renderer, text: str, tools: tuple[JsonObject, ...] = ()) -> ParsedReply:
    prompt = renderer.render([user("Hi")], [], {}).ids
    return parse_completion(renderer.parser(prompt, tools), renderer.tokenizer.encode(text))


@pytest.mark.parametrize(
    ("schema", "text", "spelled"),
    [
        ({"type": "string"}, "1", '"1"'),
        ({"type": "integer"}, "1", "1"),
        ({"type": "boolean"}, "True", "true"),
        ({}, "1.50", "1.50"),
        ({}, "one", '"one"'),
        ({}, "NaN", '"NaN"'),
    ],
)
def test_a_tag_takes_its_type_from_the_schema(schema: JsonObject, text: str, spelled: str) -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": schema}}}}
    sampled = (
        f"</think>\n\n<tool_call>\n<function=look>\n<parameter=at>\n{text}\n</parameter>\n</function>\n</tool_call>"
    )
    reply = parse_text(standin("qwen35"), sampled, (tool,))
    assert [one.arguments for one in reply.tool_calls] == [f'{{"at": {spelled}}}']


BROKEN = {
    "glm47": "</think><tool_call>look<arg_key>at</arg_key></tool_call>",
    "minimax_m25": '</think>\n\n<minimax:tool_call>\n<invoke name="look">\n<parameter>\n</invoke></minimax:tool_call>',
    "deepseekv32": "</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke>\n</｜DSML｜function_calls>",
    "kimi26": "</think><|tool_calls_section_begin|>look<|tool_calls_section_end|>",
    "qwen35": "</think>\n\n<tool_call>\n<function=look>\n<parameter=at>1\n</tool_call>",
}


@pytest.mark.parametrize("family", BROKEN)
def test_a_call_that_is_not_well_formed_stays_text(family: str) -> None:
    text = BROKEN[family]
    reply = parse_text(standin(family), text)
    assert not reply.tool_calls
    assert reply.content.lstrip("\n") == text.removeprefix("</think>").lstrip("\n")


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
            "hm",
            "Hi",
            0,
        ),
        ("<|channel|>analysis to=functions.look<|message|>{}<|call|>", None, "", 1),
        (" to=functions.look<|channel|>commentary json<|message|>{}<|call|>", None, "", 1),
        ("<|channel|>commentary<|message|>So<|end|><|start|>assistant<|channel|>final<|message|>Hi", None, "So\nHi", 0),
        ("<|channel|>commentary to=functions.look<|message|>{cut", None, "{cut", 0),
        ("<|channel|>analysis<|message|>cut", "cut", "", 0),
    ],
    ids=["analysis and final", "a call on analysis", "recipient first", "a preamble", "a cut call", "a cut thought"],
)
def test_harmony_messages_are_read_by_channel_and_recipient(
    text: str, reasoning: str | None, content: str, calls: int
) -> None:
    reply = parse_text(standin("gptoss"), text)
    assert (reply.reasoning, reply.content, len(reply.tool_calls)) == (reasoning, content, calls)
