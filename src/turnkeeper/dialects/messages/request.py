"""Anthropic's conversation as canonical messages.

What its clients are known to vary is brought to one form: strings and lists of text blocks are one text, cache marks
and the billing block are gone, results stand in the order of their calls. Thinking is matched by its text; a
signature that this server did not give, or none, is noted and no error. Everything that is left out is noted.
"""

import re
from collections.abc import Iterator
from typing import Any

from turnkeeper.dialects.conversation import AssistantDraft, Conversation, get_messages, order_results
from turnkeeper.dialects.images import IMAGE_HINT, IMAGE_TYPES, ImageFilter
from turnkeeper.dialects.jsonbody import describe_json
from turnkeeper.dialects.members import get_name, get_object, get_optional_object, get_optional_text, get_text
from turnkeeper.dialects.messages.tools import MessagesTools
from turnkeeper.dialects.opaque_reasoning import is_signed
from turnkeeper.dialects.tool_calls import render_arguments
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, Message, is_array

BILLING_HEADER = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\n?")
"""The line that Claude Code puts before its system prompt; it differs from conversation to conversation."""


def parse_conversation(
    system: Any, messages: Any, images: ImageFilter, tools: MessagesTools, *, goes_on: bool = False
) -> Conversation:
    """Parse ``system`` and ``messages``.

    Args:
        system: the system prompt.
        messages: the list of messages.
        images: says what becomes of images in what users say and tools give.
        tools: the tools that references in tool results name.
        goes_on: whether the messages follow others, so that the system prompt does not stand before them.

    Raises:
        RequestError: by the path of the field.
    """
    items = get_messages(messages)
    parser = _ConversationParser(images, tools)
    texts = parser.parse_system(system)
    parsed = [message for index, item in enumerate(items) for message in parser.parse(item, f"messages[{index}]")]
    head = [{"role": "system", "content": texts}] if texts and not goes_on else []
    return Conversation(
        messages=order_results([*head, *parsed]),
        references=tuple(parser.references),
        notes=(*dict.fromkeys(parser.notes), *images.notes),
    )


class _ConversationParser:
    """Parses the messages of one request, and keeps the notes and references that it comes across."""

    def __init__(self, images: ImageFilter, tools: MessagesTools) -> None:
        self.notes: list[str] = []
        self.references: list[str] = []
        self._images = images
        self._tools = tools

    def parse_system(self, value: Any) -> str:
        """Parse the system prompt into one text, without the billing block."""
        if value is None:
            return ""
        if isinstance(value, str):
            return self._strip_billing(value)
        blocks = self._parse_texts(value, "system")
        if blocks and BILLING_HEADER.fullmatch(blocks[0]):
            self.notes.append("left out the billing header")
            return "".join(blocks[1:])
        return self._strip_billing("".join(blocks))

    def parse(self, value: Any, where: str) -> Iterator[Message]:
        """Parse one message into the canonical messages that it stands for, in their order."""
        message = get_object(value, where)
        role, content = message.get("role"), message.get("content")
        match role:
            case "user":
                yield from self._parse_user(content, f"{where}.content")
            case "assistant":
                yield self._parse_assistant(content, f"{where}.content")
            case "system":
                yield {"role": "system", "content": self._parse_text(content, f"{where}.content")}
            case _:
                raise RequestError(
                    f"{where}.role must be user, assistant or system, got {role!r}", param=f"{where}.role"
                )

    def _strip_billing(self, text: str) -> str:
        header = BILLING_HEADER.match(text)
        if header is None:
            return text
        self.notes.append("left out the billing header")
        return text[header.end() :]

    def _parse_user(self, content: Any, where: str) -> Iterator[Message]:
        """Parse a user's blocks: the tool results first, as the protocol orders them, then the text."""
        if not is_array(content):
            yield {"role": "user", "content": get_text(content, where)}
            return
        texts: list[str] = []
        has_results = False
        for index, item in enumerate(content):
            block, place = get_object(item, f"{where}[{index}]"), f"{where}[{index}]"
            if block.get("type") == "tool_result":
                has_results = True
                yield self._parse_result(block, place)
            else:
                texts.append(self._parse_given_block(block, place))
        if texts or not has_results:
            yield {"role": "user", "content": "".join(texts)}

    def _parse_result(self, block: JsonObject, where: str) -> Message:
        call_id = get_text(block.get("tool_use_id"), f"{where}.tool_use_id")
        is_error = block.get("is_error")
        if not isinstance(is_error, bool | None):
            raise RequestError(f"{where}.is_error must be true or false, got {describe_json(is_error)}", param=where)
        if is_error:
            self.notes.append("left out is_error of tool results: their text stands for itself")
        content = block.get("content")
        return {
            "role": "tool",
            "tool_call_id": call_id,
            "content": self._parse_result_content(content, f"{where}.content"),
        }

    def _parse_result_content(self, content: Any, where: str) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        text, is_behind_definition = "", False
        for block, place in _list_blocks(content, where):
            is_definition = block.get("type") == "tool_reference"
            said = self._parse_reference(block, place) if is_definition else self._parse_given_block(block, place)
            if text and said and (is_definition or is_behind_definition):
                text += "\n"  # a definition stands on a line of its own
            text += said
            is_behind_definition = is_definition
        return text

    def _parse_reference(self, block: JsonObject, where: str) -> str:
        """Parse a reference to a tool into the tool's definition.

        It becomes the tool's name where the request has no such tool, as after the tool's server went away.
        """
        name = get_name(block.get("tool_name"), f"{where}.tool_name")
        self.references.append(name)
        definition = self._tools.find_definition(name)
        if definition is None:
            self.notes.append(f"wrote the reference to {name[:100]!r} as a name: tools has no such function")
        return name if definition is None else definition

    def _parse_given_block(self, block: JsonObject, where: str) -> str:
        """Parse a block of a user's message or of a tool's result."""
        placeholder = self._images.find_placeholder(block)
        return _parse_text_block(block, where) if placeholder is None else placeholder

    def _parse_assistant(self, content: Any, where: str) -> Message:
        draft = AssistantDraft()
        if isinstance(content, str):
            draft.texts.append(content)
            return draft.build()
        if not is_array(content):
            raise RequestError(f"{where} must be a string or a list of blocks, got {describe_json(content)}")
        for index, item in enumerate(content):
            self._parse_assistant_block(draft, get_object(item, f"{where}[{index}]"), f"{where}[{index}]")
        return draft.build()

    def _parse_assistant_block(self, draft: AssistantDraft, block: JsonObject, where: str) -> None:
        match block.get("type"):
            case "thinking":
                draft.reasoning.append(self._parse_thinking(block, where))
            case "redacted_thinking":
                self.notes.append("left out redacted thinking: this server redacts none")
            case "tool_use":
                draft.calls.append(_parse_call(block, where))
            case _:
                draft.texts.append(_parse_text_block(block, where))

    def _parse_thinking(self, block: JsonObject, where: str) -> str:
        text = get_optional_text(block.get("thinking"), f"{where}.thinking")
        signature = get_optional_text(block.get("signature"), f"{where}.signature")
        if not is_signed(text, signature):
            origin = "another signature" if signature else "no signature"
            self.notes.append(f"thinking came back with {origin}: it is matched by its text")
        return text

    def _parse_text(self, content: Any, where: str) -> str:
        return content if isinstance(content, str) else "".join(self._parse_texts(content, where))

    @staticmethod
    def _parse_texts(content: Any, where: str) -> list[str]:
        return [_parse_text_block(block, place) for block, place in _list_blocks(content, where)]


def _list_blocks(content: Any, where: str) -> list[tuple[JsonObject, str]]:
    """List the blocks, each with its path in error messages."""
    if not is_array(content):
        raise RequestError(f"{where} must be a string or a list of blocks, got {describe_json(content)}", param=where)
    return [(get_object(item, f"{where}[{index}]"), f"{where}[{index}]") for index, item in enumerate(content)]


def _parse_call(block: JsonObject, where: str) -> JsonObject:
    arguments = get_optional_object(block.get("input"), f"{where}.input")
    return {
        "id": get_text(block.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": get_name(block.get("name"), f"{where}.name"),
            "arguments": render_arguments(arguments),
        },
    }


def _parse_text_block(block: JsonObject, where: str) -> str:
    kind = block.get("type")
    if kind != "text":
        raise RequestError(
            f"{where}.type {kind!r} is not served: sessions hold text, thinking, tool_use and tool_result",
            hint=IMAGE_HINT if kind in IMAGE_TYPES else "documents cannot be replayed token by token",
            param=f"{where}.type",
        )
    return get_text(block.get("text"), f"{where}.text")
