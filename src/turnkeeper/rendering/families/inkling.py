"""Inkling, with four message markers and a marker for each kind of content; no chat template is needed.

::

    <|message_system|><|content_text|>Thinking effort level: 0.9<|end_message|>
    <|message_user|><|content_text|>...<|end_message|>
    <|message_model|><|content_thinking|>...<|end_message|><|message_model|><|content_text|>...<|end_message|>
    <|message_model|>look<|content_invoke_tool_json|>{"name":"look","args":{"at":1}}<|end_message|>
    <|content_model_end_sampling|>
    <|message_tool|>look<|content_text|>...<|end_message|>

Facts: PyPI ``renderers``, and the template that the trainer radixark/miles uses. An empty text has no block, and an
assistant message without any block has no end marker.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from turnkeeper.errors import TemplateError
from turnkeeper.jsontypes import JsonObject, Message, is_object
from turnkeeper.rendering.family import BlockFormat, BlockHeader, BlockKind, Family, Thinking
from turnkeeper.rendering.message import (
    OpenCalls,
    ToolCall,
    find_reasoning,
    get_role,
    get_text,
    get_tool_calls,
    render_json,
)
from turnkeeper.rendering.tool_calls import ParsedToolCall, Section, scan_object

_EFFORTS = {"none": 0.0, "minimal": 0.1, "low": 0.2, "medium": 0.7, "high": 0.9, "max": 0.99}
_DEFAULT_EFFORT = 0.9
_MARKERS = {
    "system": "<|message_system|>",
    "user": "<|message_user|>",
    "assistant": "<|message_model|>",
    "tool": "<|message_tool|>",
}
_END = "<|content_model_end_sampling|>"


class InklingEncoder:
    """Renders whole conversations of Inkling."""

    def render_head(
        self, head: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render the tools, the leading system messages, and the thinking effort."""
        return _render_tools(tools) + self.render(head, (), chat_template_kwargs) + _render_effort(chat_template_kwargs)

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages as they stand in the conversation."""
        calls = OpenCalls(earlier, messages)
        pieces: list[str] = []
        for message in messages:
            call = calls.take(message)
            if get_role(message) == "tool":
                name = message.get("name") or (call.name if call else "")
                text = get_text(message)
                pieces.append(f"<|message_tool|>{name}<|content_text|>{text}<|end_message|>")
            else:
                pieces.append(_render_message(message))
        return "".join(pieces)

    def render_generation_prompt(self, last: Message | None, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the generation prompt, which does not depend on the message before it."""
        return "<|message_model|>"


def _render_message(message: Message) -> str:
    role = get_role(message)
    marker, text = _MARKERS[role], get_text(message)
    body = f"{marker}<|content_text|>{text}<|end_message|>" if text else ""
    if role != "assistant":
        return body
    reasoning = find_reasoning(message)
    thought = f"{marker}<|content_thinking|>{reasoning}<|end_message|>" if reasoning else ""
    whole = thought + body + "".join(_render_call(call) for call in get_tool_calls(message))
    return whole + _END if whole else ""


def _render_call(call: ToolCall) -> str:
    if not is_object(call.arguments):
        raise TemplateError(
            f"the arguments of a call to {call.name!r} are not a JSON object",
            hint="send the arguments as the JSON text of an object",
        )
    name, arguments = _render_sorted(call.name), _render_sorted(call.arguments)
    body = f'{{"name":{name},"args":{arguments}}}'
    return f"<|message_model|>{call.name}<|content_invoke_tool_json|>{body}<|end_message|>"


def _render_sorted(value: Any) -> str:
    return render_json(value, sort_keys=True, separators=(",", ":"))


def _render_tools(tools: Sequence[JsonObject]) -> str:
    if not tools:
        return ""
    specs: list[JsonObject] = []
    for tool in tools:
        function: Any = tool.get("function") or tool
        specs.append(
            {
                "description": function.get("description") or "",
                "name": function.get("name"),
                "parameters": function.get("parameters") or {},
                "type": tool.get("type") or "function",
            }
        )
    return f"<|message_system|>tool_declare<|content_xml|>{_render_sorted(specs)}<|end_message|>"


def _render_effort(chat_template_kwargs: Mapping[str, Any]) -> str:
    given: Any = chat_template_kwargs.get("reasoning_effort")
    value: Any = _DEFAULT_EFFORT if given is None else _EFFORTS.get(given.strip()) if isinstance(given, str) else given
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 0.99:
        raise TemplateError(
            f"Inkling has no reasoning_effort={given!r}",
            hint=f"the efforts are {', '.join(_EFFORTS)}, or a number from 0 to 0.99",
        )
    spelled = "0" if value == 0 else str(float(value))
    return f"<|message_system|><|content_text|>Thinking effort level: {spelled}<|end_message|>"


def parse_header(header: str) -> BlockHeader:
    """Parse a header, in which the content marker tells the kind of the block."""
    if "<|content_thinking|>" in header:
        return BlockHeader(kind=BlockKind.REASONING)
    if "<|content_invoke_tool_json|>" in header:
        return BlockHeader(kind=BlockKind.CALL, name=header.partition("<|content_")[0])
    return BlockHeader(kind=BlockKind.CONTENT)


def parse_call(name: str, text: str, position: int) -> Section | None:
    """Parse a call, whose content is the function's name again and the arguments."""
    found = scan_object(text, position)
    if found is None or not {"name", "args"} <= set(found.members):
        return None
    named, arguments = found.members["name"], found.members["args"]
    if not isinstance(named.value, str) or not named.value or not is_object(arguments.value):
        return None
    return Section(calls=(ParsedToolCall(name=named.value, arguments=arguments.raw),), end=found.end)


INKLING = Family(
    name="inkling",
    models="Inkling, Inkling-Small",
    source="PyPI renderers; reference trainer",
    turn_end=_END,
    stop_markers=(_END,),
    reply_marker="<|message_model|>",
    inner_markers=(
        "<|content_text|>",
        "<|content_thinking|>",
        "<|content_invoke_tool_json|>",
        "<|content_xml|>",
        "<|end_message|>",
        _END,
    ),
    blocks=Thinking(
        opening="<|content_", closing="<|end_message|>", after_opening="", before_closing="", after_closing=""
    ),
    block_format=BlockFormat(
        starts=("<|message_model|>",),
        bodies=("<|content_text|>", "<|content_thinking|>", "<|content_invoke_tool_json|>"),
        ends=("<|end_message|>",),
        inner=(),
        parse_header=parse_header,
        parse_call=parse_call,
    ),
    message_encoder=InklingEncoder(),
)
