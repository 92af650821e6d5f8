r"""The history of ChatML with thinking, as Qwen3 and its successors have it, earlier thinking kept.

::

    <|im_start|>user\n...<|im_end|>\n
    <|im_start|>assistant\n<think>\n...\n</think>\n\n...<|im_end|>\n
    <|im_start|>user\n<tool_response>\n...\n</tool_response><|im_end|>\n    neighbouring results in one message
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from turnkeeper.jsontypes import Message
from turnkeeper.rendering.family import Thinking
from turnkeeper.rendering.message import get_role, get_text, get_tool_calls, split_reasoning
from turnkeeper.rendering.tool_calls import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatmlHistory:
    """Renders history in ChatML."""

    thinking: Thinking
    tools: ToolFormat
    is_content_stripped: bool = False
    """True when the text of every message is stripped at both ends, as the later models do."""
    is_thinking_always: bool = False
    """True when an assistant message without reasoning has an empty thinking block."""

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages as they stand in the conversation."""
        pieces: list[str] = []
        for role, group in groupby(messages, key=get_role):
            if role == "tool":
                pieces.append(self._render_results([self._text(get_text(message)) for message in group]))
            elif role == "assistant":
                pieces.extend(self._render_assistant(message, chat_template_kwargs) for message in group)
            else:
                pieces.extend(_wrap(role, self._text(get_text(message))) for message in group)
        return "".join(pieces)

    def _text(self, text: str) -> str:
        return text.strip() if self.is_content_stripped else text

    def _render_results(self, results: Sequence[str]) -> str:
        body = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)
        return _wrap("user", body)

    def _render_assistant(self, message: Message, chat_template_kwargs: Mapping[str, Any]) -> str:
        said = split_reasoning(message, self.thinking.opening, self.thinking.closing)
        reasoning = said.reasoning
        if reasoning is None and (self.is_thinking_always or chat_template_kwargs.get("enable_thinking") is False):
            reasoning = ""
        content = self._text(said.content)
        body = content
        if reasoning is not None:
            content = content.lstrip("\n")
            kept = reasoning.strip() if self.is_content_stripped else reasoning.strip("\n")
            body = self.thinking.render(kept) + content
        calls = get_tool_calls(message)
        if calls:
            body += (self.tools.before if content else "") + self.tools.render(calls)
        return _wrap("assistant", body)


def _wrap(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"
