"""Qwen3.5 to Qwen3.8, with tool calls as tags, stripped texts, and no system message but the first.

Facts: the chat templates of Qwen3.5, Qwen3.6 and Qwen3.8 in PyPI ``trl``. Qwen3.5 has no argument that
keeps earlier thinking, so its history is written here; the later ones keep it with ``preserve_thinking``.
"""

from dataclasses import replace

from turnkeeper.rendering.families.chatml import ChatmlHistory
from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.placement import AT_THE_HEAD
from turnkeeper.rendering.tool_calls import build_function_format

_THINKING = Thinking()
_TOOLS = build_function_format(before="\n\n", is_python_spelled=True)

QWEN35 = Family(
    name="qwen35",
    models="Qwen3.5",
    source="chat template of Qwen3.5 (PyPI trl)",
    turn_end="<|im_end|>\n",
    stop_markers=("<|im_end|>", "<|endoftext|>"),
    reply_marker="<|im_start|>assistant",
    placement=AT_THE_HEAD,
    thinking=_THINKING,
    tools=_TOOLS,
    history_format=ChatmlHistory(thinking=_THINKING, tools=_TOOLS, is_content_stripped=True, is_thinking_always=True),
)

QWEN36 = replace(
    QWEN35,
    name="qwen36",
    models="Qwen3.6",
    source="chat template of Qwen3.6 (PyPI trl)",
    pinned={"preserve_thinking": True},
    tools=build_function_format(before="\n\n", is_python_spelled=False),
    history_format=None,
)
"""Qwen3.6 spells scalars of tool arguments as JSON (``true``), Qwen3.5 as Python does (``True``)."""

QWEN38SMALL = replace(
    QWEN36,
    name="qwen38small",
    models="Qwen3.8-27B",
    source="chat template of Qwen3.8 (PyPI trl)",
    pinned={"preserve_thinking": True, "reasoning_effort": "xhigh"},
)
"""The reasoning effort is pinned because it is a sentence of the system message, which has to stay as it is."""

QWEN4EXP = replace(QWEN38SMALL, name="qwen4exp", models="Qwen3.8-Flash-Next")
