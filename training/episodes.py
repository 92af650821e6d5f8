"""Training conversations: how a task is solved, as text, as messages and as token ids with a loss mask.

The text is written here directly, which is much faster than rendering the chat template;
``tests/tiny/test_template.py`` holds that the two agree.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from turnkeeper.demo.tasks import CALCULATOR_TOOL, SYSTEM_PROMPT, Task, calculate
from turnkeeper.jsontypes import JsonObject

THOUGHTS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
"""The thinking line before a call: the name of its operation."""
LAST_THOUGHT = "done"
ANSWERS = ("The answer is {}.", "It is {}.", "That makes {}.")
"""The final texts; which one comes is left to chance, so that sampling has something to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One solved task after the system message, in ids."""

    ids: list[int]
    is_trained: list[bool]
    """For each id, whether the model is to predict it: the assistant's own tokens, end marker included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of the conversation that is wholly the assistant's or wholly not."""

    text: str
    is_assistant: bool


def system_text() -> str:
    """The start of every conversation: the system message with the tool."""
    tool = json.dumps(CALCULATOR_TOOL, ensure_ascii=False)
    return (
        f"<|im_start|>system\n{SYSTEM_PROMPT}\n\nYou have these tools:\n<tools>\n{tool}\n</tools>\n"
        "To use one, write its name and arguments as JSON between <tool_call> and </tool_call>.<|im_end|>\n"
    )


def pieces(task: Task, answer: str) -> Iterator[Piece]:
    """The conversation after the system message.

    Args:
        task: what is asked.
        answer: one of `ANSWERS`.
    """
    yield Piece(text=f"<|im_start|>user\n{task.question}<|im_end|>\n<|im_start|>assistant\n", is_assistant=False)
    for step in task.steps:
        call = json.dumps({"name": "calculate", "arguments": {"expression": step}})
        thought = THOUGHTS[step.split()[1]]
        yield Piece(
            text=f"<think>\n{thought}\n</think>\n\n<tool_call>\n{call}\n</tool_call><|im_end|>", is_assistant=True
        )
        yield Piece(
            text=f"\n<|im_start|>user\n<tool_response>\n{calculate(step)}\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n",
            is_assistant=False,
        )
    yield Piece(text=f"<think>\n{LAST_THOUGHT}\n</think>\n\n{answer.format(task.answer)}<|im_end|>", is_assistant=True)


def messages(task: Task, answer: str) -> list[JsonObject]:
    """The conversation as chat messages, system message included."""
    found: list[JsonObject] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": task.question},
    ]
    for step in task.steps:
        call = {"name": "calculate", "arguments": {"expression": step}}
        thought = THOUGHTS[step.split()[1]]
        found.append({"role": "assistant", "reasoning_content": thought, "tool_calls": [{"function": call}]})
        found.append({"role": "tool", "content": calculate(step)})
    last = {"role": "assistant", "reasoning_content": LAST_THOUGHT, "content": answer.format(task.answer)}
    return [*found, last]


def encode_episodes(tokenizer: Tokenizer, tasks: tuple[Task, ...], seed: int) -> list[Episode]:
    """Solve tasks and encode the conversations; the final texts are drawn from the seed."""
    rng = random.Random(seed)
    stretches = [list(pieces(task, rng.choice(ANSWERS))) for task in tasks]
    encoded = iter(tokenizer.encode_batch_fast([piece.text for stretch in stretches for piece in stretch]))
    episodes: list[Episode] = []
    for stretch in stretches:
        episode = Episode(ids=[], is_trained=[])
        for piece in stretch:
            ids = next(encoded).ids
            episode.ids.extend(ids)
            episode.is_trained.extend([piece.is_assistant] * len(ids))
        episodes.append(episode)
    return episodes
