"""GLM-4.7, GLM-5 to 5.2 and GLM-5.3, whose stop token is the marker of the next message.

Facts: the chat template of GLM-4.7-Flash (PyPI ``llama-cpp-python``). An assistant message has no end of its own: the
model samples ``<|user|>`` or ``<|observation|>``, whichever it thinks comes next. ``clear_thinking=False`` keeps
earlier thinking.
"""

import re
from dataclasses import replace

from turnkeeper.rendering.family import Family, Thinking
from turnkeeper.rendering.tool_calls import XmlToolFormat

_STOPS = ("<|user|>", "<|observation|>", "<|endoftext|>")

GLM47 = Family(
    name="glm47",
    models="GLM-4.7, 5, 5.1, 5.2",
    source="chat template of GLM-4.7-Flash (PyPI llama-cpp-python)",
    turn_end="",
    stop_markers=_STOPS,
    replaced_markers=_STOPS,
    reply_marker="<|assistant|>",
    pinned={"clear_thinking": False},
    thinking=Thinking(after_opening="", before_closing="", after_closing=""),
    tools=XmlToolFormat(
        opening="<tool_call>",
        closing="</tool_call>",
        call_opening="{name}",
        call_closing="",
        parameter_opening="<arg_key>{key}</arg_key><arg_value>",
        parameter_closing="</arg_value>",
        pattern=re.compile(
            r"(?P<call_opening>(?<=<tool_call>)\s*(?P<name>[^<>\s]+)\s*(?=<arg_key>|</tool_call>))|"
            r"(?P<parameter_opening><arg_key>(?P<key>[^<>]*)</arg_key>\s*<arg_value>)|(?P<parameter_closing></arg_value>)"
        ),
    ),
)

GLM53 = replace(
    GLM47,
    name="glm53",
    models="GLM-5.3, GLM-5.3-Flash",
    source="chat template of GLM-4.7-Flash (PyPI llama-cpp-python); reference trainer",
    pinned={**GLM47.pinned, "enable_thinking": True},
)
"""The generation prompt of GLM-5.3 opens thinking whether it is on or off, so thinking has to be on."""
