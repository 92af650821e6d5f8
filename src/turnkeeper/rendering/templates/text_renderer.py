r"""Conversations as text: by the checkpoint's template alone, or by the template's head and a family's rule.

A writer answers two questions: the whole text of a conversation, and the text that *follows* an assistant message when
more messages are appended. The second is found by difference behind a small synthetic prefix, so its cost does not
grow with the history::

    [user, assistant "@"]                    ... @<|im_end|>\n
    [user, assistant "@", tool, ...]         ... @<|im_end|>\n | <|im_start|>user\n<tool_response>...
                                                               ^ the suffix begins where the first text ends

Both texts are cut behind the ``@``: what a template does to the thinking before it does not matter.
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
"""The text of the synthetic assistant message: invisible separators around a word, so that no template writes it."""
TOOL: JsonObject = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
CALL: JsonObject = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_QUESTION: Message = {"role": "user", "content": "\u2063turnkeeper-question\u2063"}


class TextRenderer(Protocol):
    """Writes conversations as text."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The whole conversation; ``is_open`` adds the opening of the assistant's next message."""
        ...

    def render_suffix(
        self,
        earlier: Sequence[Message],
        appended: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
    ) -> str:
        """What stands behind the close of an assistant message (the last of ``earlier``) once messages are appended.

        The opening of the assistant's next message is included.
        """
        ...

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """How an assistant's message is opened behind a question."""
        ...


class TemplateTextRenderer:
    """Writes everything with the checkpoint's template."""

    def __init__(self, template: ChatTemplate) -> None:
        """Keep the template."""
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
        """The whole conversation."""
        return self._template.render(messages, tools, chat_template_kwargs, add_generation_prompt=add_generation_prompt)

    def render_suffix(
        self,
        earlier: Sequence[Message],
        appended: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
    ) -> str:
        """The difference of two renderings behind a synthetic prefix.

        Raises:
            TemplateError: the template refuses the messages, or writes the assistant message otherwise once
                something follows it.
        """
        calls = earlier[-1].get("tool_calls") if earlier else None
        stub: list[Message] = [_QUESTION, build_anchor(calls)]
        without = _cut(self._template.render(stub, tools, chat_template_kwargs, add_generation_prompt=False))
        text = _cut(self._template.render([*stub, *appended], tools, chat_template_kwargs, add_generation_prompt=True))
        if not text.startswith(without):
            raise TemplateError("the template rewrites the assistant message once these messages follow it")
        return text[len(without) :]

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """How the template opens an assistant's message."""
        return self._generation_prompts.render(chat_template_kwargs)

    def find_turn_end(self) -> str:
        """The text that the template writes behind an assistant message.

        Raises:
            TemplateError: it refuses a question and an answer, or leaves the answer's text out.
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
        """The text that the template ends with when the last message calls a tool; empty where it cannot."""
        try:
            return _cut(
                self._template.render([_QUESTION, build_anchor([CALL])], [TOOL], {}, add_generation_prompt=False)
            )
        except TemplateError:
            return ""


class HistoryTextRenderer:
    """Writes the beginning with the checkpoint's template, everything from the first assistant message by a rule.

    So is everything from the first system message that does not lead: the template might leave it out.
    """

    def __init__(self, template: ChatTemplate, history_format: HistoryFormat) -> None:
        """Keep both."""
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
        """The whole conversation."""
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
        """The rule's text of the appended messages: tools stand in the head, so they do not matter."""
        return self._history_format.render(appended, earlier, chat_template_kwargs) + self.render_generation_prompt(
            chat_template_kwargs
        )

    def _render_head(
        self, head: Sequence[Message], tools: Sequence[JsonObject], chat_template_kwargs: Mapping[str, Any]
    ) -> str:
        """The head alone. Templates may demand a user message: one is lent and taken back."""
        if any(get_role(message) == "user" for message in head):
            return self.template.render(head, tools, chat_template_kwargs, add_generation_prompt=False)
        text = self.template.render([*head, _QUESTION], tools, chat_template_kwargs, add_generation_prompt=False)
        return text.removesuffix(self._history_format.render([_QUESTION], head, chat_template_kwargs))

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """How the template opens an assistant's message."""
        return self._generation_prompts.render(chat_template_kwargs)


class EncoderTextRenderer:
    """Writes everything with a family's encoder."""

    def __init__(self, message_encoder: MessageEncoder) -> None:
        """Keep the encoder."""
        self._message_encoder = message_encoder

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The whole conversation."""
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
        """The encoder's text of the appended messages."""
        text = self._message_encoder.render(appended, earlier, chat_template_kwargs)
        return text + self._message_encoder.render_generation_prompt(appended[-1], chat_template_kwargs)

    def render_generation_prompt(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """How the encoder opens an assistant's message behind a question."""
        return self._message_encoder.render_generation_prompt(_QUESTION, chat_template_kwargs)


class _GenerationPrompts:
    """How a template opens an assistant's message, by its arguments."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._rendered: dict[str, str] = {}

    def render(self, chat_template_kwargs: Mapping[str, Any]) -> str:
        """The difference between a question with and without the opening."""
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
    """The synthetic assistant message, with the calls that the appended tool results answer."""
    message: JsonObject = {"role": "assistant", "content": ANCHOR}
    return {**message, "tool_calls": calls} if calls else message


def _find_split(messages: Sequence[Message]) -> int:
    """How many messages the template writes where a rule writes the rest."""
    lead = count_head(messages)
    by_rule = (
        index
        for index, message in enumerate(messages)
        if get_role(message) == "assistant" or (index >= lead and is_instruction(message))
    )
    return next(by_rule, len(messages))


def _cut(text: str) -> str:
    """What stands behind the anchor; the whole text where a template left the anchor out."""
    return text.rpartition(ANCHOR)[2]
