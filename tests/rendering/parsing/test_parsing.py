"""Completions as messages.

1. Reasoning, content and tool calls come out by the format's markers; arguments keep the sampled spelling.
2. Layout is what the format writes, once; more of it is text. What is no well-formed call stays text.
3. The result does not depend on the chunking, and no text is lost.
4. A marker counts only as its token: the same letters sampled piecewise are text.
"""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeeper.core.tokens import freeze_ids
from turnkeeper.rendering import ParsedReply, Renderer, parse_completion

CALL = '<tool_call>\n{"name": "look", "arguments": {"at":  1.0}}\n</tool_call>'


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    sampled: str
    reasoning: str | None = None
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    prompt: str = "<|im_start|>assistant\n"


CASES = (
    Case(id="text", sampled="Hello<|im_end|>", content="Hello"),
    Case(id="text without stop token", sampled="Hello", content="Hello"),
    Case(id="thinking and text", sampled="<think>\nhm\n</think>\n\nHi<|im_end|>", reasoning="hm", content="Hi"),
    Case(id="empty thinking", sampled="<think>\n\n</think>\n\nHi", reasoning="", content="Hi"),
    Case(
        id="more than the layout is text",
        sampled="<think>\n\nhm\n\n</think>\n\n\nHi",
        reasoning="\nhm\n",
        content="\nHi",
    ),
    Case(id="less than the layout", sampled="<think>hm</think>Hi", reasoning="hm", content="Hi"),
    Case(
        id="thinking that the prompt opened",
        prompt="<|im_start|>assistant\n<think>\n",
        sampled="hm\n</think>\n\nHi",
        reasoning="hm",
        content="Hi",
    ),
    Case(id="cut inside thinking", sampled="<think>\nlet me\n", reasoning="let me\n"),
    Case(id="a call drafted inside thinking", sampled=f"<think>\n{CALL}", reasoning=CALL),
    Case(id="a call", sampled=f"{CALL}<|im_end|>", calls=(("look", '{"at":  1.0}'),)),
    Case(id="text and a call", sampled=f"So:\n{CALL}<|im_end|>", content="So:", calls=(("look", '{"at":  1.0}'),)),
    Case(
        id="thinking and two calls",
        sampled=f"<think>\nhm\n</think>\n\n{CALL}\n{CALL}<|im_end|>",
        reasoning="hm",
        calls=(("look", '{"at":  1.0}'),) * 2,
    ),
    Case(id="text behind a call", sampled=f"{CALL}\ndone", content="\ndone", calls=(("look", '{"at":  1.0}'),)),
    Case(id="a call without arguments", sampled='<tool_call>{"name": "x"}</tool_call>', calls=(("x", "{}"),)),
    Case(id="a call that is cut", sampled='a\n<tool_call>\n{"name": "lo', content='a\n<tool_call>\n{"name": "lo'),
    Case(
        id="a call that is no JSON",
        sampled="<tool_call>\n{look}\n</tool_call><|im_end|>",
        content="<tool_call>\n{look}\n</tool_call>",
    ),
    Case(
        id="arguments that are no object",
        sampled='<tool_call>{"name": "x", "arguments": [1]}</tool_call>',
        content='<tool_call>{"name": "x", "arguments": [1]}</tool_call>',
    ),
    Case(
        id="a key that comes twice",
        sampled='<tool_call>{"name": "x", "name": "y", "arguments": {}}</tool_call>',
        content='<tool_call>{"name": "x", "name": "y", "arguments": {}}</tool_call>',
    ),
    Case(id="a stop token in the middle is text", sampled="a<|im_end|>b<|im_end|>", content="a<|im_end|>b"),
    Case(id="a closing marker alone is text", sampled="a</think>b", content="a</think>b"),
    Case(id="thinking opened late is text", sampled="a<think>b", content="a<think>b"),
    Case(id="nothing", sampled="<|im_end|>"),
)


def parse(renderer: Renderer, ids: list[int], prompt: str) -> ParsedReply:
    return parse_completion(renderer.parser(renderer.tokenizer.encode(prompt)), freeze_ids(ids))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_completion_is_read_by_its_markers(qwen3: Renderer, case: Case) -> None:
    reply = parse(qwen3, qwen3.tokenizer.encode(case.sampled).tolist(), case.prompt)
    found = tuple((one.name, one.arguments) for one in reply.tool_calls)
    assert (reply.reasoning, reply.content, found) == (case.reasoning, case.content, case.calls)


def test_a_marker_spelled_piecewise_is_text(qwen3: Renderer) -> None:
    pieces = [piece for text in ("<", "think", ">") for piece in qwen3.tokenizer.encode(text).tolist()]
    assert qwen3.tokenizer.find_id("<think>") not in pieces
    assert parse(qwen3, pieces, "").content == "<think>"


SNIPPETS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|im_end|>",
    "\n",
    "\n\n",
    " ",
    "a",
    "😀é中",
    CALL,
    "{",
)


@settings(max_examples=150, deadline=None)
@given(
    snippets=st.lists(st.sampled_from(SNIPPETS), max_size=8),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    prompt=st.sampled_from(["", "<think>\n"]),
)
def test_chunks_do_not_matter_and_nothing_is_lost(
    qwen3: Renderer, snippets: list[str], cuts: list[int], prompt: str
) -> None:
    text = "".join(snippets)
    ids = qwen3.tokenizer.encode(text).tolist()
    whole = parse(qwen3, ids, prompt)
    parser = qwen3.parser(qwen3.tokenizer.encode(prompt))
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    deltas = [parser.feed(ids[start:stop]) for start, stop in pairwise(edges)]
    deltas.append(parser.finish())
    assert parser.reply == whole
    assert "".join(delta.reasoning for delta in deltas) == (whole.reasoning or "")
    assert "".join(delta.content for delta in deltas) == whole.content
    assert tuple(one for delta in deltas for one in delta.tool_calls) == whole.tool_calls
    said = (whole.reasoning or "") + whole.content + CALL * len(whole.tool_calls)
    markers = ("<think>", "</think>", "<|im_end|>")
    assert count_letters(said, markers) == count_letters(text, markers)


def count_letters(text: str, markers: tuple[str, ...]) -> list[str]:
    """The characters that carry meaning, in any order: neither layout nor the markers that a parser consumes."""
    for marker in markers:
        text = text.replace(marker, "")
    return sorted(text.replace("\n", ""))


def test_a_character_that_straddles_tokens_waits_for_its_end(qwen3: Renderer) -> None:
    ids = qwen3.tokenizer.encode("\U00013000").tolist()
    assert len(ids) > 1
    parser = qwen3.parser()
    assert not parser.feed(ids[:1])
    assert parser.feed(ids[1:]).content == "\U00013000"


def test_half_a_character_at_the_end_is_not_lost(qwen3: Renderer) -> None:
    ids = qwen3.tokenizer.encode("a\U00013000").tolist()
    assert parse(qwen3, ids[:-1], "").content == "a\ufffd"
