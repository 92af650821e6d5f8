r"""MiniMax M2.5 and M2.7, with tags of their own, and a newline behind the stop token.

::

    ]~b]user\n...[e~[\n
    ]~b]ai\n<think>\n...\n</think>\n\n...[e~[\n
    ]~b]tool\n<response>...</response>\n<response>...</response>[e~[\n

Facts: the chat template of MiniMax-M2 (PyPI ``llama-cpp-python``); M2.5 and M2.7 differ in the default system text,
which the checkpoint's own template renders. The template drops thinking before the last user message, and silently
leaves out any system message but the first. Here thinking is kept, and such a system message becomes a user message.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from turnkeeper.jsontypes import Message
from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.message import get_role, get_text, get_tool_calls, split_reasoning
from turnkeeper.rendering.placement import AT_THE_HEAD
from turnkeeper.rendering.tool_calls import XmlToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimaxHistory:
    """Renders history with its thinking."""

    thinking: Thinking
    tools: XmlToolFormat

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages as they stand in the conversation."""
        pieces: list[str] = []
        for role, group in groupby(messages, key=get_role):
            if role == "tool":
                results = "".join(f"\n<response>{get_text(message)}</response>" for message in group)
                pieces.append(f"]~b]tool{results}[e~[\n")
            elif role == "assistant":
                pieces.extend(f"]~b]ai\n{self._render_reply(message)}[e~[\n" for message in group)
            else:
                pieces.extend(f"]~b]{role}\n{get_text(message)}[e~[\n" for message in group)
        return "".join(pieces)

    def _render_reply(self, message: Message) -> str:
        said = split_reasoning(message, self.thinking.opening, self.thinking.closing)
        thinking = "" if said.reasoning is None else self.thinking.render(said.reasoning)
        calls = get_tool_calls(message)
        return thinking + said.content + (self.tools.before + self.tools.render(calls) if calls else "")


_THINKING = Thinking()
_TOOLS = XmlToolFormat(
    opening="<minimax:tool_call>",
    closing="</minimax:tool_call>",
    inner="\n",
    call_opening='<invoke name="{name}">\n',
    call_closing="</invoke>\n",
    parameter_opening='<parameter name="{key}">',
    parameter_closing="</parameter>\n",
    pattern=re.compile(
        r'(?P<call_opening><invoke name="(?P<name>[^"<>\n]+)">)|(?P<call_closing></invoke>)|'
        r'(?P<parameter_opening><parameter name="(?P<key>[^"<>\n]+)">)|(?P<parameter_closing></parameter>)'
    ),
    before="\n",
    is_one_section=True,
)

MINIMAX_M25 = Family(
    name="minimax_m25",
    models="MiniMax M2.5",
    source="chat template of MiniMax-M2 (PyPI llama-cpp-python)",
    turn_end="[e~[\n",
    stop_markers=("[e~[",),
    reply_marker="]~b]ai",
    placement=AT_THE_HEAD,
    thinking=_THINKING,
    tools=_TOOLS,
    history_format=MinimaxHistory(thinking=_THINKING, tools=_TOOLS),
)

MINIMAX_M27 = replace(MINIMAX_M25, name="minimax_m27", models="MiniMax M2.7")
