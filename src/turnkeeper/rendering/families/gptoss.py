"""gpt-oss, whose format harmony makes a reply a sequence of messages on channels.

::

    <|start|>assistant<|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": 1}<|call|>
    <|start|>functions.look to=assistant<|channel|>commentary<|message|>...<|end|>
    <|start|>assistant<|channel|>final<|message|>...<|return|>           in history it ends with <|end|>

When the conversation goes on, ``<|end|>`` replaces the sampled ``<|return|>``. ``<|call|>`` ends a message by itself.
Analysis is kept, also behind a new user message.

Facts: PyPI ``openai-harmony``, and the chat template of gpt-oss (PyPI ``trl``), which renders the head here. The
template drops analysis and quotes tool results as JSON; harmony itself does neither, and is followed here.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnkeeper.jsontypes import Message
from turnkeeper.rendering.family import BlockFormat, BlockHeader, BlockKind, Family
from turnkeeper.rendering.message import OpenCalls, find_reasoning, get_role, get_text, get_tool_calls, render_arguments
from turnkeeper.rendering.placement import Placement
from turnkeeper.rendering.tool_calls import ParsedToolCall, Section, scan_object

_RECIPIENT = re.compile(r"to=(?:functions\.)?(?P<name>[^\s<]+)")


def parse_header(header: str) -> BlockHeader:
    """Parse a header: a recipient makes the block a call on any channel; analysis is reasoning, all else is answer."""
    recipient = _RECIPIENT.search(header)
    if recipient and recipient["name"] != "assistant":
        return BlockHeader(kind=BlockKind.CALL, name=recipient["name"])
    is_analysis = "<|channel|>analysis" in header
    return BlockHeader(kind=BlockKind.REASONING if is_analysis else BlockKind.CONTENT)


def parse_call(name: str, text: str, position: int) -> Section | None:
    """Parse a call, whose content is the arguments; they keep their spelling."""
    found = scan_object(text, position)
    if found is None:
        return None
    call = ParsedToolCall(name=name, arguments=text[position : found.end].strip())
    return Section(calls=(call,), end=found.end)


class HarmonyHistory:
    """Renders history as harmony messages."""

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages as they stand in the conversation."""
        calls = OpenCalls(earlier, messages)
        pieces: list[str] = []
        for message in messages:
            call = calls.take(message)
            if get_role(message) == "tool":
                name = (call.name if call else "") or message.get("name") or calls.last_name
                pieces.append(_render(f"functions.{name} to=assistant<|channel|>commentary", get_text(message)))
            else:
                pieces.append(_render_message(message))
        return "".join(pieces)


def _render_message(message: Message) -> str:
    role, text = get_role(message), get_text(message)
    if role in ("system", "developer"):
        return _render("developer", f"# Instructions\n\n{text}")
    if role != "assistant":
        return _render(role, text)
    reasoning, calls = find_reasoning(message), get_tool_calls(message)
    pieces = [_render("assistant<|channel|>analysis", reasoning)] if reasoning else []
    if text or not (calls or reasoning):
        pieces.append(_render(f"assistant<|channel|>{'commentary' if calls else 'final'}", text))
    for call in calls:
        header = f"assistant<|channel|>commentary to=functions.{call.name} <|constrain|>json"
        pieces.append(f"<|start|>{header}<|message|>{render_arguments(call.arguments)}<|call|>")
    return "".join(pieces)


def _render(header: str, text: str) -> str:
    return f"<|start|>{header}<|message|>{text}<|end|>"


GPTOSS = Family(
    name="gptoss",
    models="gpt-oss",
    source="PyPI openai-harmony; chat template of gpt-oss (PyPI trl)",
    turn_end="<|end|>",
    stop_markers=("<|return|>", "<|call|>", "<|endoftext|>"),
    replaced_markers=("<|return|>", "<|endoftext|>"),
    final_markers=("<|call|>",),
    reply_marker="<|start|>assistant",
    inner_markers=("<|channel|>", "<|message|>", "<|constrain|>"),
    block_format=BlockFormat(
        starts=("<|start|>",),
        bodies=("<|message|>",),
        ends=("<|end|>", "<|call|>", "<|return|>"),
        inner=("<|channel|>", "<|constrain|>"),
        parse_header=parse_header,
        parse_call=parse_call,
    ),
    placement=Placement(is_head_joined=True),
    is_template_followed=False,
    history_format=HarmonyHistory(),
)
