"""Paths as a model would have sampled them, cut out of a family's own rendering of the history."""

from collections.abc import Sequence

from turnkeeper.core.tokens import TokenIds
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import ParentContext, Renderer


def find_stop(renderer: Renderer, text: str, following: Message) -> str:
    """A history that ends in an assistant message, as it stood when that message had just been sampled."""
    family = renderer.family
    close = family.turn_end or ""
    if family.name in ("glm47", "glm53"):
        return text + ("<|observation|>" if following.get("role") == "tool" else "<|user|>")
    if family.name == "gptoss":
        return text if text.endswith("<|call|>") else text.removesuffix("<|end|>") + "<|return|>"
    return text.removesuffix(close) + close.removesuffix("\n")


def parent_ids(renderer: Renderer, history: Sequence[Message], tools: Sequence[JsonObject], next_: Message) -> TokenIds:
    """The path ids of a history that ends in an assistant message."""
    arguments = renderer.validate(history, tools, {})
    text = renderer.text_renderer.render(renderer.place(history), tools, arguments, add_generation_prompt=False)
    return renderer.tokenizer.encode(find_stop(renderer, text, next_))


def extend(
    renderer: Renderer, history: Sequence[Message], appended: Sequence[Message], tools: Sequence[JsonObject]
) -> list[int]:
    """Path and prompt together."""
    ids = parent_ids(renderer, history, tools, appended[0])
    parent = ParentContext(messages=history, completion_ids=ids)
    prompt = renderer.extend(parent, appended, tools, {})
    return [*ids[: len(ids) - prompt.trim].tolist(), *prompt.ids.tolist()]
