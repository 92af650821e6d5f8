"""Stored ids against canonical text.

1. A path as the family writes it has no mismatch, in any family.
2. What the model spelled in its own way is ``assistant_text``; another text anywhere else is ``non_assistant_text``.
3. Markers that do not pair are one ``special_token_count``; another marker in the same place is ``special_token_type``.
4. Nothing is tokenized.
5. An empty thinking block that no message shows is ``assistant_text``, unless the family or the arguments ask for one.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from rendering.sampled import parent_ids
from rendering.standins import STABLE, standin
from rendering.strategies import conversations
from rendering.talk import LOOK, assistant, call, system, tool, user
from turnkeeper.core.tokens import TokenIds
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import FAMILIES, Mismatch, MismatchType, Renderer

TALK: list[Message] = [
    system("Be brief."),
    user("Hi"),
    assistant("", call("look", {"at": 1}), reasoning="first"),
    tool("seven"),
    assistant("Done.", reasoning="second"),
]


@pytest.mark.parametrize("family", STABLE)
@settings(max_examples=8, deadline=None)
@given(messages=conversations())
def test_a_path_as_the_family_writes_it_has_no_mismatch(family: str, messages: list[Message]) -> None:
    renderer = standin(family)
    ids = parent_ids(renderer, messages[:-1], [LOOK], messages[-1])
    assert renderer.compare(messages[:-1], [LOOK], {}, ids) == ()


def path(renderer: Renderer, change: Callable[[str], str]) -> TokenIds:
    """The ids of the talk, its text changed."""
    text = renderer.text_renderer.render(TALK, [LOOK], renderer.validate(TALK, [LOOK], {}), add_generation_prompt=False)
    changed = change(text)
    assert changed != text
    return renderer.tokenizer.encode(changed)


def compare(renderer: Renderer, change: Callable[[str], str]) -> tuple[Mismatch, ...]:
    return renderer.compare(TALK, [LOOK], {}, path(renderer, change))


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_model_said_otherwise_is_assistant_text(family: str) -> None:
    mismatches = compare(standin(family), lambda text: text.replace("Done.", "Done!"))
    assert [one.type for one in mismatches] == [MismatchType.ASSISTANT_TEXT]
    assert "Done." in mismatches[0].expected_text
    assert "Done!" in mismatches[0].actual_text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("old", "new"), [("seven", "eight"), ("Hi", "Ho"), ("Be brief.", "Be long.")])
def test_what_anybody_else_said_otherwise_is_not(family: str, old: str, new: str) -> None:
    mismatches = compare(standin(family), lambda text: text.replace(old, new))
    assert [one.type for one in mismatches] == [MismatchType.NON_ASSISTANT_TEXT]


def test_a_lost_marker_is_one_mismatch_of_structure() -> None:
    mismatches = compare(standin("qwen3"), lambda text: text.replace("<|im_end|>", "", 1))
    assert [(one.type, one.segment_index) for one in mismatches] == [(MismatchType.SPECIAL_TOKEN_COUNT, -1)]
    assert "Be brief." in mismatches[0].expected_text


def test_another_marker_in_its_place_is_a_mismatch_of_type() -> None:
    mismatches = compare(standin("qwen3"), lambda text: text.replace("<|im_end|>", "<|endoftext|>", 1))
    assert [one.to_json() for one in mismatches] == [
        {
            "type": "special_token_type",
            "segment_index": 2,
            "expected_text": "<|im_end|>",
            "actual_text": "<|endoftext|>",
            "detail": "",
        }
    ]


def test_a_long_text_is_shown_around_the_difference() -> None:
    renderer = standin("qwen3")
    long = "word " * 1000
    messages = [user(f"{long}here{long}"), assistant("a", reasoning="b")]
    text = renderer.text_renderer.render(messages, [], {}, add_generation_prompt=False)
    mismatch = renderer.compare(messages, [], {}, renderer.tokenizer.encode(text.replace("here", "there")))[0]
    assert "here" in mismatch.expected_text
    assert len(mismatch.expected_text) < 900
    assert "5005 of " in mismatch.detail


def test_nothing_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = standin("qwen3")
    ids = parent_ids(renderer, TALK, [LOOK], user("x"))
    monkeypatch.setattr(type(renderer.tokenizer), "encode", None)
    assert renderer.compare(TALK, [LOOK], {}, ids) == ()


@pytest.mark.parametrize(
    ("family", "arguments", "types"),
    [
        pytest.param("qwen3", {}, [MismatchType.ASSISTANT_TEXT], id="none-asked-for"),
        pytest.param("qwen3", {"enable_thinking": False}, [], id="thinking-off"),
        pytest.param("qwennext", {}, [], id="always-one"),
    ],
)
def test_an_empty_thinking_block_is_said_by_the_ids_alone(
    family: str, arguments: JsonObject, types: list[MismatchType]
) -> None:
    renderer = standin(family)
    messages = [user("Hi"), assistant("Yes")]
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nYes<|im_end|>"
    mismatches = renderer.compare(messages, [], arguments, renderer.tokenizer.encode(text))
    assert [one.type for one in mismatches] == types
