r"""Kimi K2.5 and K2.6, with three markers in each message, and call ids that the model gives itself.

::

    <|im_user|>user<|im_middle|>...<|im_end|>
    <|im_assistant|>assistant<|im_middle|><think>...</think>...<|tool_calls_section_begin|>
        <|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"at": 1}<|tool_call_end|>
        <|tool_calls_section_end|><|im_end|>
    <|im_system|>look<|im_middle|>## Return of functions.look:0\n...<|im_end|>

Facts: the chat template of Kimi-K2-Thinking (PyPI ``llama-cpp-python``) and the layout of K2.5 in PyPI ``renderers``.
K2.5 drops the thinking of everything up to the last assistant message without calls; K2.6 keeps it with
``preserve_thinking``. ``<|im_middle|>`` stands inside a message, so it delimits none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turnkeeper.jsontypes import Message
from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.message import ToolCall, find_reasoning, get_role, get_text, get_tool_calls, render_arguments
from turnkeeper.rendering.tool_calls import (
    MarkedText,
    ParsedToolCall,
    Section,
    TextOrCalls,
    ToolSchemas,
    parse_sections,
    scan_object,
)

_MARKERS = {"user": "<|im_user|>", "assistant": "<|im_assistant|>"}
_CALL_OPENING = re.compile(r"\s*<\|tool_call_begin\|>\s*(?P<id>[^<]+?)\s*<\|tool_call_argument_begin\|>")
_CALL_CLOSING = re.compile(r"\s*<\|tool_call_end\|>\s*")
_ID = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiToolFormat:
    """The format with all calls in one section; the function's name is part of a call's id."""

    opening: str = "<|tool_calls_section_begin|>"
    closing: str = "<|tool_calls_section_end|>"
    before: str = ""
    between: str = ""

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Render all calls as one section."""
        body = "".join(
            f"<|tool_call_begin|>{call.id}<|tool_call_argument_begin|>{render_arguments(call.arguments)}<|tool_call_end|>"
            for call in calls
        )
        return f"{self.opening}{body}{self.closing}"

    def parse(self, tail: MarkedText, schemas: ToolSchemas) -> Iterator[TextOrCalls]:
        """Yield the texts and the calls of each section in order; arguments keep their spelling."""
        return parse_sections(tail, _parse_calls)


def _parse_calls(text: str, position: int) -> Section | None:
    calls: list[ParsedToolCall] = []
    while match := _CALL_OPENING.match(text, position):
        named = _ID.fullmatch(match["id"])
        found = scan_object(text, match.end())
        end = _CALL_CLOSING.match(text, found.end) if found else None
        if named is None or found is None or end is None:
            return None
        arguments = text[match.end() : found.end].strip()
        calls.append(ParsedToolCall(name=named["name"], arguments=arguments, id=match["id"]))
        position = end.end()
    return Section(calls=tuple(calls), end=position) if calls else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiHistory:
    """Renders history with its thinking; a message without thinking has the two markers side by side."""

    thinking: Thinking
    tools: KimiToolFormat

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages as they stand in the conversation."""
        return "".join(self._render_message(message) for message in messages)

    def _render_message(self, message: Message) -> str:
        role = get_role(message)
        name = message.get("name") or role
        text = get_text(message)
        if role == "assistant":
            text = self.thinking.render(find_reasoning(message) or "") + text
            calls = get_tool_calls(message)
            text += self.tools.render(calls) if calls else ""
        elif role == "tool":
            text = f"## Return of {message.get('tool_call_id', '')}\n{text}"
        return f"{_MARKERS.get(role, '<|im_system|>')}{name}<|im_middle|>{text}<|im_end|>"


_THINKING = Thinking(after_opening="", before_closing="", after_closing="")
_TOOLS = KimiToolFormat()

KIMI25 = Family(
    name="kimi25",
    models="Kimi K2.5",
    source="chat template of Kimi-K2-Thinking (PyPI llama-cpp-python), K2.5 of PyPI renderers",
    turn_end="<|im_end|>",
    stop_markers=("<|im_end|>", "[EOS]"),
    reply_marker="<|im_assistant|>",
    inner_markers=("<|im_middle|>",),
    thinking=_THINKING,
    tools=_TOOLS,
    history_format=KimiHistory(thinking=_THINKING, tools=_TOOLS),
)

KIMI26 = replace(KIMI25, name="kimi26", models="Kimi K2.6", pinned={"preserve_thinking": True}, history_format=None)
