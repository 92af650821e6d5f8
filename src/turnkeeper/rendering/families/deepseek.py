r"""DeepSeek V3.2 and V4, which have no chat template: two message encoders that keep thinking.

::

    V3.2   <bos>system<User>question<Assistant><think>...</think>answer<eos>
           ...calls<eos>\n\n<function_results>\n<result>...</result>\n</function_results>\n\n<think>...
    V4     <bos>system<User>question<Assistant><think>...</think>...calls<eos>
           <User><tool_result>...</tool_result><Assistant><think>...

In V3.2 the user message ends with the generation prompt, and the assistant continues behind tool results. V4 joins
neighbouring tool and user messages to one user turn, with parallel results in the order of their calls.

Facts: the Jinja renderings of both encoders in PyPI ``llama-cpp-python``, the reference trainer's V3.2 encoder, and
V4 in PyPI ``renderers``. Where they differ, docs/reference/families.md says which was taken and why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from turnkeeper.errors import TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.families.deepseek_tools import render_v4_tools, render_v32_tools
from turnkeeper.rendering.families.dsml import (
    ASSISTANT,
    BOS,
    EOS,
    SWITCHES,
    THINKING,
    USER,
    DsmlToolFormat,
    is_thinking_on,
    refuse_effort,
)
from turnkeeper.rendering.family import Family
from turnkeeper.rendering.message import OpenCalls, find_reasoning, get_role, get_text, get_tool_calls
from turnkeeper.rendering.placement import Placement, Role


def _render_head(texts: Sequence[str], tools_text: str) -> str:
    """Render BOS, the system texts, and the tools behind the first of them."""
    first, *rest = texts or [""]
    return BOS + first + (f"\n\n{tools_text}" if tools_text else "") + "".join(rest)


def _render_reply(message: Message, tools: DsmlToolFormat, *, is_thinking: bool) -> str:
    """Render an assistant message behind the generation prompt."""
    thinking = (find_reasoning(message) or "") + THINKING.closing if is_thinking else ""
    calls = get_tool_calls(message)
    return thinking + get_text(message) + (tools.before + tools.render(calls) if calls else "") + EOS


def _bracket(chat_template_kwargs: Mapping[str, Any]) -> str:
    return THINKING.opening if is_thinking_on(chat_template_kwargs) else THINKING.closing


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekV32Encoder:
    """The encoder of V3.2, in which every message but a system message ends with a generation prompt."""

    tools: DsmlToolFormat

    def render_head(
        self, head: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render the beginning-of-sequence marker, the system texts and the tools."""
        refuse_effort(chat_template_kwargs)
        return _render_head([get_text(message) for message in head], render_v32_tools(tools) if tools else "")

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages with the generation prompts between them; the one behind the last is not included."""
        pieces: list[str] = []
        for role, group in groupby(messages, key=get_role):
            run = list(group)
            if role == Role.TOOL:
                results = "".join(f"\n<result>{get_text(message)}</result>" for message in run)
                pieces.append(f"\n\n<function_results>{results}\n</function_results>")
                pieces.append(self.render_generation_prompt(run[-1], chat_template_kwargs))
            else:
                for message in run:
                    pieces.append(self._render_message(message, chat_template_kwargs))
                    pieces.append(
                        self.render_generation_prompt(message, chat_template_kwargs) if role != Role.SYSTEM else ""
                    )
        return "".join(pieces[:-1])

    def _render_message(self, message: Message, chat_template_kwargs: Mapping[str, Any]) -> str:
        role, text = get_role(message), get_text(message)
        if role == Role.ASSISTANT:
            return _render_reply(message, self.tools, is_thinking=is_thinking_on(chat_template_kwargs))
        if role == Role.DEVELOPER:
            text = f"\n\n# The user's message is: {text}"
        return text if role == Role.SYSTEM else USER + text

    def render_generation_prompt(self, last: Message | None, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the generation prompt: behind tool results the assistant continues, behind a user message it begins,
        and behind an assistant message there is none."""
        role = get_role(last) if last else ""
        if role == Role.TOOL:
            return "\n\n" + _bracket(chat_template_kwargs)
        if role in (Role.USER, Role.DEVELOPER):
            return ASSISTANT + _bracket(chat_template_kwargs)
        if role == Role.ASSISTANT:
            return ""
        raise TemplateError("nothing opens the assistant's message behind a system message in DeepSeek V3.2")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSeekV4Encoder:
    """The encoder of V4, in which tool results are part of a user turn."""

    tools: DsmlToolFormat

    def render_head(
        self, head: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render the beginning-of-sequence marker, the system texts and the tools."""
        refuse_effort(chat_template_kwargs)
        return _render_head([get_text(message) for message in head], render_v4_tools(tools) if tools else "")

    def render(
        self, messages: Sequence[Message], earlier: Sequence[Message], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render messages, neighbouring user and tool messages as one user turn."""
        pieces: list[str] = []
        caller = next((message for message in reversed(earlier) if get_role(message) == Role.ASSISTANT), None)
        for is_folded, group in groupby(messages, key=lambda message: get_role(message) in (Role.USER, Role.TOOL)):
            run = list(group)
            if is_folded:
                texts = [self._render_part(message) for message in _order_results(run, caller)]
                pieces.append(USER + "\n\n".join(texts))
            else:
                pieces.extend(self._render_message(message, chat_template_kwargs) for message in run)
                caller = next((message for message in reversed(run) if get_role(message) == Role.ASSISTANT), caller)
        return "".join(pieces)

    def _render_part(self, message: Message) -> str:
        text = get_text(message)
        return f"<tool_result>{text}</tool_result>" if get_role(message) == Role.TOOL else text

    def _render_message(self, message: Message, chat_template_kwargs: Mapping[str, Any]) -> str:
        role, text = get_role(message), get_text(message)
        if role == Role.ASSISTANT:
            reply = _render_reply(message, self.tools, is_thinking=is_thinking_on(chat_template_kwargs))
            return self.render_generation_prompt(None, chat_template_kwargs) + reply
        return USER + text if role == Role.DEVELOPER else text

    def render_generation_prompt(self, last: Message | None, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the generation prompt, which does not depend on the message before it."""
        return ASSISTANT + _bracket(chat_template_kwargs)


def _order_results(run: Sequence[Message], caller: Message | None) -> Sequence[Message]:
    """Return neighbouring messages with the tool results in the order of the calls they answer; other messages keep
    their places."""
    calls = get_tool_calls(caller) if caller else ()
    answered = OpenCalls((caller,) if caller else (), run)

    def find_place(message: Message) -> int:
        call = answered.take(message)
        return 0 if call is None else calls.index(call)

    ordered = iter(sorted((message for message in run if get_role(message) == Role.TOOL), key=find_place))
    return [next(ordered) if get_role(message) == Role.TOOL else message for message in run]


_OF_V32 = DsmlToolFormat(block="function_calls")
_OF_V4 = DsmlToolFormat(block="tool_calls")
_PLACEMENT = Placement(later_system=Role.USER, later_developer=Role.DEVELOPER)
"""System texts stand behind BOS, and so does a developer message of the head. Behind the head no marker separates a
system message from the text before it, so it becomes a user message; a developer message is a user turn there."""

DEEPSEEKV32 = Family(
    name="deepseekv32",
    models="DeepSeek V3.2",
    source="V3.2 encoder as Jinja (PyPI llama-cpp-python), reference trainer",
    turn_end=EOS,
    delimiters=(USER, ASSISTANT, THINKING.opening, THINKING.closing),
    spoken_markers=(THINKING.opening, THINKING.closing),
    stop_markers=(EOS,),
    reply_marker=ASSISTANT,
    placement=_PLACEMENT,
    pinned={"drop_thinking": False},
    thinking_switches=SWITCHES,
    thinking=THINKING,
    tools=_OF_V32,
    message_encoder=DeepSeekV32Encoder(tools=_OF_V32),
)

DEEPSEEKV4 = Family(
    name="deepseekv4",
    models="DeepSeek V4",
    source="V4 encoder as Jinja (PyPI llama-cpp-python), PyPI renderers",
    turn_end=EOS,
    delimiters=(USER, ASSISTANT, THINKING.opening, THINKING.closing),
    spoken_markers=(THINKING.opening, THINKING.closing),
    stop_markers=(EOS,),
    reply_marker=ASSISTANT,
    placement=_PLACEMENT,
    pinned={"drop_thinking": False},
    thinking_switches=SWITCHES,
    thinking=THINKING,
    tools=_OF_V4,
    message_encoder=DeepSeekV4Encoder(tools=_OF_V4),
)
