"""Nemotron 3, with the message markers of ChatML and tool calls as tags.

Facts: the chat template of Nemotron-3-Nano (PyPI ``trl``). ``truncate_history_thinking=False`` keeps earlier
thinking; a message without thinking has the two markers side by side.
"""

from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.tool_calls import build_function_format

NEMOTRON3 = Family(
    name="nemotron3",
    models="Nemotron 3",
    source="chat template of Nemotron-3-Nano (PyPI trl)",
    turn_end="<|im_end|>\n",
    stop_markers=("<|im_end|>", "</s>"),
    reply_marker="<|im_start|>assistant",
    pinned={"truncate_history_thinking": False},
    thinking=Thinking(after_closing="\n", is_layout_dropped=True),
    tools=build_function_format(before="\n", after="\n", is_python_spelled=True),
)
