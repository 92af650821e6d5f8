"""Assistant messages in canonical form, from our own parsers.

1. Only what is there stands in the message; arguments keep their spelling.
2. A call has the id that the model wrote, and an empty one where its format has none.
3. A renderer's parser reads ids, and knows whether the prompt opened thinking.
"""

import pytest

from engines.builders import make_request
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.engines import build_parser
from turnkeeper.engines.message import build_assistant_message
from turnkeeper.rendering import ParsedReply, ParsedToolCall, Renderer, build_renderer
from turnkeeper.tiny.checkpoint import shipped_checkpoint


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return build_renderer(read_checkpoint(shipped_checkpoint()), "qwen3")


def test_only_what_is_there_stands_in_the_message() -> None:
    assert build_assistant_message(ParsedReply(reasoning=None, content="x", tool_calls=())) == {
        "role": "assistant",
        "content": "x",
    }
    assert (
        build_assistant_message(ParsedReply(reasoning="why", content="", tool_calls=()))["reasoning_content"] == "why"
    )


def test_arguments_and_ids_keep_their_spelling() -> None:
    calls = (ParsedToolCall(name="f", arguments='{"a":  1.0}'), ParsedToolCall(name="g", arguments="{}", id="own"))
    message = build_assistant_message(ParsedReply(reasoning=None, content="", tool_calls=calls))
    assert message["tool_calls"] == [
        {"id": "", "type": "function", "function": {"name": "f", "arguments": '{"a":  1.0}'}},
        {"id": "own", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_a_renderers_parser_reads_ids(renderer: Renderer) -> None:
    parse = build_parser(renderer)
    prompt = renderer.tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    text = '<think>\nwhy\n</think>\n\nso<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
    message = parse(make_request(prompt=prompt.tolist()), freeze_ids(renderer.tokenizer.encode(text)))
    assert (message["reasoning_content"], message["content"]) == ("why", "so")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_a_prompt_that_opened_thinking_makes_the_beginning_reasoning(renderer: Renderer) -> None:
    parse = build_parser(renderer)
    prompt = renderer.tokenizer.encode("<|im_start|>assistant\n<think>\n")
    message = parse(make_request(prompt=prompt.tolist()), renderer.tokenizer.encode("why\n</think>\n\nso<|im_end|>"))
    assert (message["reasoning_content"], message["content"]) == ("why", "so")
