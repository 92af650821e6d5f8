"""The chat template of the embedded engine.

1. A conversation renders to the ChatML layout that Qwen3's tools expect, byte for byte.
2. What an assistant has said stays as it is when messages follow: every prefix of a conversation renders to a
   prefix of its rendering.
3. It renders what the engine was trained on, and the same ids.
4. The session server's `qwen3` family builds prompts of these same ids, the first one and those that follow.
5. Roles it does not know are refused.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from training.episodes import ANSWERS, encode_episodes, messages, pieces, system_text
from training.tasks import training_tasks
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.demo.tasks import CALCULATOR_TOOL, held_out_tasks
from turnkeeper.rendering import Checkpoint, ParentContext, build_renderer
from turnkeeper.tiny.checkpoint import shipped_checkpoint

DATA: Path = shipped_checkpoint()


class RefusedError(Exception):
    """What the template raises."""


def _refuse(message: str) -> None:
    raise RefusedError(message)


def _render(conversation: list[dict[str, Any]], *, tools: list[Any] | None = None, prompt: bool = False) -> str:
    """Render as Hugging Face does: trimmed blocks, plain JSON."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    template = environment.from_string((DATA / "chat_template.jinja").read_text())
    return template.render(messages=conversation, tools=tools, add_generation_prompt=prompt)


def _call(arguments: Any) -> dict[str, Any]:
    return {"id": "call_0", "type": "function", "function": {"name": "calculate", "arguments": arguments}}


def test_a_whole_conversation_has_the_layout_of_qwen3() -> None:
    conversation = [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "Two sums?"},
        {
            "role": "assistant",
            "reasoning_content": "add",
            "content": "",
            "tool_calls": [_call({"expression": "1 + 2"}), _call('{"expression":  "3 + 4"}')],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "3"},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
        {"role": "assistant", "content": "One more.", "tool_calls": [_call({"expression": "3 + 7"})]},
        {"role": "tool", "content": "10"},
        {"role": "assistant", "reasoning_content": "done", "content": "It is 10."},
        {"role": "user", "content": [{"type": "text", "text": "Thank"}, {"type": "text", "text": " you."}]},
    ]
    assert _render(conversation, tools=[{"name": "a"}, {"name": "é"}], prompt=True) == (
        "<|im_start|>system\nBe exact.\n\nYou have these tools:\n<tools>\n"
        '{"name": "a"}\n{"name": "é"}\n</tools>\n'
        "To use one, write its name and arguments as JSON between <tool_call> and </tool_call>.<|im_end|>\n"
        "<|im_start|>user\nTwo sums?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nadd\n</think>\n\n"
        '<tool_call>\n{"name": "calculate", "arguments": {"expression": "1 + 2"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "calculate", "arguments": {"expression":  "3 + 4"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nOne more.\n"
        '<tool_call>\n{"name": "calculate", "arguments": {"expression": "3 + 7"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n10\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\ndone\n</think>\n\nIt is 10.<|im_end|>\n"
        "<|im_start|>user\nThank you.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("conversation", "text"),
    [
        ([], ""),
        ([{"role": "user", "content": "Hi"}], "<|im_start|>user\nHi<|im_end|>\n"),
        ([{"role": "assistant", "content": None}], "<|im_start|>assistant\n<|im_end|>\n"),
        ([{"role": "assistant", "content": "Hi", "reasoning_content": ""}], "<|im_start|>assistant\nHi<|im_end|>\n"),
        (
            [{"role": "assistant", "content": "\n\nHi", "reasoning_content": "\nwell\n"}],
            "<|im_start|>assistant\n<think>\nwell\n</think>\n\nHi<|im_end|>\n",
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
            "<|im_start|>user\na<|im_end|>\n<|im_start|>system\nb<|im_end|>\n",
        ),
        ([{"role": "tool", "content": "1"}], "<|im_start|>user\n<tool_response>\n1\n</tool_response><|im_end|>\n"),
    ],
    ids=["nothing", "user", "silent", "no-thinking", "thinking-with-newlines", "late-system", "lone-tool"],
)
def test_single_messages_render_plainly(conversation: list[dict[str, Any]], text: str) -> None:
    assert _render(conversation) == text


@pytest.mark.parametrize("task", training_tasks(6, seed=3), ids=lambda task: task.id)
def test_appending_messages_keeps_what_was_rendered(task: Any) -> None:
    conversation = [*messages(task, ANSWERS[0]), {"role": "user", "content": "And now?"}]
    whole = _render(conversation, tools=[CALCULATOR_TOOL])
    for length, message in enumerate(conversation):
        if message["role"] == "assistant":  # where a prompt ends and where an assistant's turn ends
            assert whole.startswith(_render(conversation[:length], tools=[CALCULATOR_TOOL], prompt=True))
            assert whole.startswith(_render(conversation[: length + 1], tools=[CALCULATOR_TOOL]))


@pytest.mark.parametrize("task", [*training_tasks(6, seed=4), *held_out_tasks(6, seed=4)], ids=lambda task: task.id)
def test_the_engine_was_trained_on_what_the_template_renders(task: Any) -> None:
    rendered = _render(messages(task, ANSWERS[1]), tools=[CALCULATOR_TOOL])
    written = system_text() + "".join(piece.text for piece in pieces(task, ANSWERS[1]))
    assert rendered == written + "\n"  # the newline behind the end marker is nobody's to predict


def test_training_ids_are_those_of_the_whole_text() -> None:
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizer.json"))
    tasks = training_tasks(20, seed=5)
    for task, episode in zip(tasks, encode_episodes(tokenizer, tasks, seed=0), strict=True):
        text = tokenizer.decode(episode.ids, skip_special_tokens=False)
        assert task.question in text
        assert tokenizer.encode(system_text() + text).ids == tokenizer.encode(system_text()).ids + episode.ids
        trained = [token for token, is_trained in zip(episode.ids, episode.is_trained, strict=True) if is_trained]
        assert tokenizer.decode(trained, skip_special_tokens=False).count("<|im_end|>") == len(task.steps) + 1


@pytest.mark.parametrize("task", held_out_tasks(6, seed=6), ids=lambda task: task.id)
def test_the_qwen3_family_prompts_with_the_ids_of_the_training(task: Any) -> None:
    files = {name: (DATA / name).read_text() for name in ("tokenizer_config.json", "config.json")}
    checkpoint = Checkpoint(
        tokenizer_json=(DATA / "tokenizer.json").read_bytes(),
        template=(DATA / "chat_template.jinja").read_text(),
        tokenizer_config=json.loads(files["tokenizer_config.json"]),
        config=json.loads(files["config.json"]),
    )
    renderer = build_renderer(checkpoint, "qwen3")
    tokenizer = Tokenizer.from_file(str(DATA / "tokenizer.json"))
    conversation, stretches = messages(task, ANSWERS[0]), list(pieces(task, ANSWERS[0]))
    encoded = [tokenizer.encode(piece.text).ids for piece in stretches]
    first = renderer.render(conversation[:2], [CALCULATOR_TOOL], {})
    assert list(first.ids) == tokenizer.encode(system_text()).ids + encoded[0]
    for turn in range(len(task.steps)):
        said = 3 + 2 * turn  # system, user, then assistant and tool in turns
        parent = ParentContext(messages=conversation[:said], completion_ids=freeze_ids(encoded[1 + 2 * turn]))
        prompt = renderer.extend(parent, conversation[said : said + 1], [CALCULATOR_TOOL], {})
        assert prompt.trim == 0
        assert list(prompt.ids) == encoded[2 + 2 * turn]


def test_unknown_roles_are_refused() -> None:
    with pytest.raises(RefusedError, match="not developer"):
        _render([{"role": "developer", "content": "Hi"}])
