r"""Conversations as text, by the checkpoint's template, by the template and a history format, or by a message encoder.

A text renderer gives the whole text of a conversation, and the text that *follows* an assistant message when more
messages are appended. With a template alone the second is the difference of two renderings behind a small synthetic
conversation, so that its cost does not grow with the history::

    [user, assistant "@"]                    ... @<|im_end|>\n
    [user, assistant "@", tool, ...]         ... @<|im_end|>\n | <|im_start|>user\n<tool_response>...
                                                               ^ the suffix begins where the first text ends

The two texts are compared behind the ``@``, so that it does not matter what a template does to earlier thinking.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from turnkeeper.errors import TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering.family import HistoryFormat, MessageEncoder
from turnkeeper.rendering.message import get_role, render_json
from turnkeeper.rendering.placement import count_head, is_instruction
from turnkeeper.rendering.templates.template import ChatTemplate

ANCHOR = "\u2063turnkeeper-anchor\u2063"
"""The text of the synthetic assistant message. Invisible separators make it a text that no template contains."""
TOOL: JsonObject = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
CALL: JsonObject = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_QUESTION: Message = {"role": "user", "content": "\u2063turnkeeper-question\u2063"}


class TextRenderer(Protocol):
    """Renders conversations as text."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """Render a whole conversation, followed by the generation prompt where ``add_generation_prompt`` is True."""
        ...

    def render_suffix(
        self,
        earlier: Sequence[Message],
        appended: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
    ) -> str:
        """Render the text behind the turn end of the last message of ``earlier``, an assistant message, once messages
        are appended. The generation prompt is included."""
        ...

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the generation prompt, which is the beginning of an assistant message behind a user message."""
        ...


class TemplateTextRenderer:
    """Renders everything with the checkpoint's template."""

    def __init__(self, template: ChatTemplate) -> None:
        """Keep a template."""
        self._template = template
        self._generation_prompts = _GenerationPrompts(template)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """Render the whole conversation."""
        return self._template.render(messages, tools, chat_template_kwargs, add_generation_prompt=add_generation_prompt)

    def render_suffix(
        self,
        earlier: Sequence[Message],
        appended: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
    ) -> str:
        """Render a synthetic conversation with and without the appended messages, and return the difference.

        Raises:
            TemplateError: the template refuses the messages, or renders the assistant message in another way once
                a message follows it.
        """
        calls = earlier[-1].get("tool_calls") if earlier else None
        stub: list[Message] = [_QUESTION, build_anchor(calls)]
        without = _cut(self._template.render(stub, tools, chat_template_kwargs, add_generation_prompt=False))
        text = _cut(self._template.render([*stub, *appended], tools, chat_template_kwargs, add_generation_prompt=True))
        if not text.startswith(without):
            raise TemplateError("the template rewrites the assistant message once these messages follow it")
        return text[len(without) :]

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the generation prompt behind a user message."""
        return self._generation_prompts.render(chat_template_kwargs)

    def find_turn_end(self) -> str:
        """Find the text that the template puts behind an assistant message.

        Raises:
            TemplateError: the template refuses a question and an answer, or leaves out the text of the answer.
        """
        stub = [_QUESTION, build_anchor(None)]
        try:
            text = self._template.render(stub, (), {}, add_generation_prompt=False)
        except TemplateError:  # some templates cannot do without tools
            text = self._template.render(stub, [TOOL], {}, add_generation_prompt=False)
        if ANCHOR not in text:
            raise TemplateError("the template leaves the text of an assistant message out")
        return _cut(text)

    def find_call_end(self) -> str:
        """Find the text that the template puts behind a tool call; empty where the template refuses tool calls."""
        try:
            return _cut(
                self._template.render([_QUESTION, build_anchor([CALL])], [TOOL], {}, add_generation_prompt=False)
            )
        except TemplateError:
            return ""


class HistoryTextRenderer:
    """Renders the head with the checkpoint's template, and everything from the first assistant message on with the
    family's history format.

    The history format also renders everything from the first system message behind the head, since the template might
    leave it out.
    """

    def __init__(self, template: ChatTemplate, history_format: HistoryFormat) -> None:
        """Keep a template and a history format."""
        self.template = template
        self._history_format = history_format
        self._generation_prompts = _GenerationPrompts(template)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """Render the whole conversation."""
        split = _find_split(messages)
        if split == len(messages):
            return self.template.render(
                messages, tools, chat_template_kwargs, add_generation_prompt=add_generation_prompt
            )
        head = self._render_head(messages[:split], tools, chat_template_kwargs)
        history = self._history_format.render(messages[split:], messages[:split], chat_template_kwargs)
        return head + history + (self.render_generation_prompt(chat_template_kwargs) if add_generation_prompt else "")

    def render_suffix(
        self,
        earlier: Sequence[Message],
        appended: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
    ) -> str:
        """Render the appended messages with the history format. Tools are part of the head, and not needed here."""
        return self._history_format.render(appended, earlier, chat_template_kwargs) + self.render_generation_prompt(
            chat_template_kwargs
        )

    def _render_head(
        self, head: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """Render the head alone. For templates that demand a user message, one is added and its text taken away."""
        if any(get_role(message) == "user" for message in head):
            return self.template.render(head, tools, chat_template_kwargs, add_generation_prompt=False)
        text = self.template.render([*head, _QUESTION], tools, chat_template_kwargs, add_generation_prompt=False)
        return text.removesuffix(self._history_format.render([_QUESTION], head, chat_template_kwargs))

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the generation prompt behind a user message."""
        return self._generation_prompts.render(chat_template_kwargs)


class EncoderTextRenderer:
    """Renders everything with a family's message encoder."""

    def __init__(self, message_encoder: MessageEncoder) -> None:
        """Keep a message encoder."""
        self._message_encoder = message_encoder

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """Render the whole conversation."""
        is_head = (get_role(message) == "system" for message in messages)
        split = next((index for index, is_system in enumerate(is_head) if not is_system), len(messages))
        head, rest = messages[:split], messages[split:]
        text = self._message_encoder.render_head(head, tools, chat_template_kwargs) + self._message_encoder.render(
            rest, head, chat_template_kwargs
        )
        last = messages[-1] if messages else None
        return text + (
            self._message_encoder.render_generation_prompt(last, chat_template_kwargs) if add_generation_prompt else ""
        )

    def render_suffix(
        self,
        earlier: Sequence[Message],
        appended: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
    ) -> str:
        """Render the appended messages and the generation prompt."""
        text = self._message_encoder.render(appended, earlier, chat_template_kwargs)
        return text + self._message_encoder.render_generation_prompt(appended[-1], chat_template_kwargs)

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render the generation prompt behind a user message."""
        return self._message_encoder.render_generation_prompt(_QUESTION, chat_template_kwargs)


class _GenerationPrompts:
    """The generation prompts of a template, by ``chat_template_kwargs``."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._rendered: dict[str, str] = {}

    def render(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """Render a user message with and without the generation prompt, and return the difference."""
        key = render_json(dict(chat_template_kwargs), sort_keys=True, default=repr)
        opening = self._rendered.get(key)
        if opening is None:
            closed = self._template.render([_QUESTION], (), chat_template_kwargs, add_generation_prompt=False)
            opening = self._template.render(
                [_QUESTION], (), chat_template_kwargs, add_generation_prompt=True
            ).removeprefix(closed)
            if len(self._rendered) >= 256:  # arguments come from requests: keep the table small
                self._rendered.clear()
            self._rendered[key] = opening
        return opening


def build_anchor(calls: Any) -> Message:
    """Build the synthetic assistant message, with the calls that the appended tool results answer."""
    message: JsonObject = {"role": "assistant", "content": ANCHOR}
    return {**message, "tool_calls": calls} if calls else message


def _find_split(messages: Sequence[Message]) -> int:
    """Count the messages that the template renders where a history format renders the rest."""
    lead = count_head(messages)
    by_rule = (
        index
        for index, message in enumerate(messages)
        if get_role(message) == "assistant" or (index >= lead and is_instruction(message))
    )
    return next(by_rule, len(messages))


def _cut(text: str) -> str:
    """Return the text behind the anchor; the whole text where the template left out the anchor."""
    return text.rpartition(ANCHOR)[2]
