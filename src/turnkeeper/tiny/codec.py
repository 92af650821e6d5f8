"""The checkpoint's text side: its tokenizer, its chat template, and the reader of its replies.

The template is rendered as it stands, which is what an engine does that is asked without token ids. Replies are read
from *text*, as SGLang reads them: tokens are the truth, messages a view of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from turnkeeper.core.tokens import TokenIds
from turnkeeper.errors import ConfigError, RequestError
from turnkeeper.jsontypes import JsonObject, is_object
from turnkeeper.rendering import Checkpoint, ParsedReply, ReplyDelta, Tokenizer, get_family
from turnkeeper.rendering.parsing import TaggedParser
from turnkeeper.rendering.templates import ChatTemplate
from turnkeeper.rendering.tool_calls import ToolSchemas

FAMILY = "qwen3"
"""Whose reply format the toy model has learnt."""


STOPS = ("<|im_end|>",)
"""What ends a reply; one at its end is no text."""


class ReplyReader:
    """Reads one reply, a piece of text at a time."""

    def __init__(self, tokenizer: Tokenizer, *, has_tools: bool, has_reasoning: bool) -> None:
        """Begin a reply; tool calls, or thinking, that are not wanted apart stay text."""
        family = get_family(FAMILY)
        if not has_tools:
            family = replace(family, tools=None)
        if not has_reasoning:
            family = replace(family, thinking=None)
        self._tokenizer = tokenizer
        self._parser = TaggedParser(tokenizer, family, stops=STOPS, schemas=ToolSchemas(), is_thinking=False)

    def feed(self, text: str) -> ReplyDelta:
        """Read a piece of text, and return what it completes."""
        return self._parser.feed(self._tokenizer.encode(text).tolist())

    def finish(self) -> ReplyDelta:
        """End the reply, and return what was still held back."""
        return self._parser.finish()

    @property
    def reply(self) -> ParsedReply:
        """The whole reply; complete after `finish`."""
        return self._parser.reply


class ChatCodec:
    """Messages to token ids and text to messages, by one checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        """Read the folder's text files.

        Raises:
            ConfigError: one of them is missing or malformed.
        """
        checkpoint = _read_checkpoint(folder)
        self.tokenizer = Tokenizer(checkpoint.tokenizer_json)
        self._template = ChatTemplate(checkpoint.template or "", checkpoint.named_tokens)

    def render(
        self,
        messages: Sequence[JsonObject],
        tools: Sequence[JsonObject],
        chat_template_kwargs: Mapping[str, Any],
        *,
        is_continued: bool = False,
    ) -> TokenIds:
        """Render the prompt of a conversation.

        Args:
            messages: in chat-completions form, at least one.
            tools: function tools.
            arguments: the template's own arguments.
            is_continued: whether the last message is the beginning of the reply.

        Raises:
            RequestError: the messages are malformed, or the template refuses them.
        """
        opening = ""
        if is_continued:
            *messages, last = messages
            if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
                raise RequestError("continue_final_message needs an assistant's text as the last message")
            opening = str(last["content"])
        try:
            text = self._template.render(messages, tools, chat_template_kwargs, add_generation_prompt=True)
        except (AttributeError, TypeError, ValueError, LookupError) as error:
            raise RequestError(f"messages or tools are malformed: {error}", param="messages") from error
        return self.tokenizer.encode(text + opening)

    def new_reader(self, *, has_tools: bool, has_reasoning: bool) -> ReplyReader:
        """Make a reader for one reply."""
        return ReplyReader(self.tokenizer, has_tools=has_tools, has_reasoning=has_reasoning)


def _read_checkpoint(folder: Path) -> Checkpoint:
    try:
        tokenizer_config: Any = orjson.loads((folder / "tokenizer_config.json").read_bytes())
        return Checkpoint(
            tokenizer_json=(folder / "tokenizer.json").read_bytes(),
            tokenizer_config=tokenizer_config if is_object(tokenizer_config) else {},
            template=(folder / "chat_template.jinja").read_text(encoding="utf-8"),
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint folder {folder} cannot be read: {error}",
            hint="turnkeeper engine --write-checkpoint DIR writes a whole one",
        ) from error
