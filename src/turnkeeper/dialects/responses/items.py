"""The items of a Responses conversation as canonical messages.

Neighbouring items of the assistant (reasoning, message, calls) are one assistant message, as they are one reply; where
their ids name different replies, as in a history whose tool calls were pruned, each reply is a message of its own.
Reasoning is matched by its text; where a client kept only ``encrypted_content``, the text is decoded from there if this
server encoded it. Items that nobody here can replay are refused by their type.
"""

from collections.abc import Callable
from typing import Any

from turnkeeper.dialects.conversation import AssistantDraft, Conversation, order_results
from turnkeeper.dialects.images import IMAGE_HINT, IMAGE_TYPES, ImageFilter
from turnkeeper.dialects.jsonbody import describe_json
from turnkeeper.dialects.members import get_list, get_name, get_object, get_optional_text, get_text
from turnkeeper.dialects.opaque_reasoning import decode_reasoning
from turnkeeper.dialects.responses.ids import (
    RAW_CUSTOM_CALL,
    FindReply,
    find_reply_hex,
    resolve_call_id,
    resolve_item,
)
from turnkeeper.dialects.responses.tools import join_name, render_custom_input
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, Message, is_array

TEXT_PARTS = ("input_text", "output_text", "text")


def parse_conversation(instructions: Any, items: Any, images: ImageFilter, find_reply: FindReply) -> Conversation:
    """Parse ``instructions`` and ``input``.

    Args:
        instructions: the system prompt.
        items: a text, or the list of items.
        images: says what becomes of images in what users say and tools give.
        find_reply: looks for a reply of the session, for references to its items.

    Raises:
        RequestError: by the path of the field.
    """
    parser = _ConversationParser(images, find_reply)
    text = get_optional_text(instructions, "instructions")
    if text:
        parser.messages.append({"role": "system", "content": text})
    if isinstance(items, str):
        parser.messages.append({"role": "user", "content": items})
    elif is_array(items) and items:
        for index, item in enumerate(items):
            parser.add(get_object(item, f"input[{index}]"), f"input[{index}]")
    else:
        found = "an empty list" if items == [] else describe_json(items)
        raise RequestError(f"input must be a string or a list with at least one item, got {found}", param="input")
    parser.flush()
    return Conversation(messages=order_results(parser.messages), notes=(*dict.fromkeys(parser.notes), *images.notes))


class _ConversationParser:
    """Parses the items of one request, and keeps the notes that it comes across."""

    def __init__(self, images: ImageFilter, find_reply: FindReply) -> None:
        self._images = images
        self._find_reply = find_reply
        self.messages: list[Message] = []
        self.notes: list[str] = []
        self._draft: AssistantDraft | None = None
        self._reply: str | None = None
        """The reply that the ids of the draft's items name; None while none of them has such an id."""
        self._parsers: dict[str, Callable[[JsonObject, str], None]] = {
            "message": self._add_message,
            "reasoning": self._add_reasoning,
            "function_call": self._add_call,
            "custom_tool_call": self._add_custom_call,
            "function_call_output": self._add_output,
            "custom_tool_call_output": self._add_output,
            "item_reference": self._add_reference,
        }

    def add(self, item: JsonObject, where: str) -> None:
        # The type may be left out of messages, and of references, which have nothing but an id.
        kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
        parse = self._parsers.get(kind) if isinstance(kind, str) else None
        if parse is None:
            raise RequestError(
                f"{where}.type {kind!r} is not served",
                hint=_HINTS.get(str(kind), f"known: {', '.join(self._parsers)}"),
                param=f"{where}.type",
            )
        parse(item, where)

    def flush(self) -> None:
        """End the assistant message that is being parsed."""
        draft, self._draft = self._draft, None
        if draft is not None:
            self.messages.append(draft.build())

    def _open(self, item: JsonObject) -> AssistantDraft:
        """Open the assistant message that the item is part of, or go on with it."""
        reply = find_reply_hex(item.get("id"))
        if self._draft is not None and reply and self._reply not in (None, reply):
            self.flush()
        if self._draft is None:
            self._draft, self._reply = AssistantDraft(), None
        self._reply = reply or self._reply
        return self._draft

    def _add_message(self, item: JsonObject, where: str) -> None:
        role = item.get("role")
        if role not in ("user", "system", "developer", "assistant"):
            raise RequestError(
                f"{where}.role must be user, system, developer or assistant, got {role!r}", param=f"{where}.role"
            )
        images = self._images if role == "user" else None
        text = _parse_content(item.get("content"), f"{where}.content", images)
        if role == "assistant":
            self._open(item).texts.append(text)
            return
        self.flush()
        self.messages.append({"role": role, "content": text})

    def _add_reasoning(self, item: JsonObject, where: str) -> None:
        said = _join_texts(item.get("content"), f"{where}.content")
        said = said or _join_texts(item.get("summary"), f"{where}.summary")
        encoded = get_optional_text(item.get("encrypted_content"), f"{where}.encrypted_content")
        decoded = decode_reasoning(encoded) if encoded else None
        if encoded and decoded is None:
            self.notes.append("encrypted_content came from another server: the reasoning is matched by its text")
        self._open(item).reasoning.append(said or decoded or "")

    def _add_call(self, item: JsonObject, where: str) -> None:
        self._put_call(item, where, get_text(item.get("arguments"), f"{where}.arguments"))

    def _add_custom_call(self, item: JsonObject, where: str) -> None:
        text = get_text(item.get("input"), f"{where}.input")
        is_raw = get_optional_text(item.get("id"), f"{where}.id").startswith(f"{RAW_CUSTOM_CALL}_")
        self._put_call(item, where, text if is_raw else render_custom_input(text))

    def _put_call(self, item: JsonObject, where: str, arguments: str) -> None:
        namespace = get_optional_text(item.get("namespace"), f"{where}.namespace")
        name = join_name(namespace, get_name(item.get("name"), f"{where}.name"))
        call_id = self._parse_call_id(item, where)
        function = {"name": name, "arguments": arguments}
        self._open(item).calls.append({"id": call_id, "type": "function", "function": function})

    def _parse_call_id(self, item: JsonObject, where: str) -> str:
        return resolve_call_id(get_text(item.get("call_id"), f"{where}.call_id"), self._find_reply)

    def _add_output(self, item: JsonObject, where: str) -> None:
        self.flush()
        call_id = self._parse_call_id(item, where)
        text = _parse_content(item.get("output"), f"{where}.output", self._images)
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _add_reference(self, item: JsonObject, where: str) -> None:
        item_id = get_name(item.get("id"), f"{where}.id")
        content = resolve_item(item_id, self._find_reply)
        if content is None:
            raise RequestError(
                f"{where}.id {item_id[:100]!r} names no item of a reply that this session gave",
                hint="send the item itself; other items than those of replies are not stored",
                param=f"{where}.id",
            )
        draft = self._open(item)
        draft.reasoning += [content.reasoning] if content.reasoning is not None else []
        draft.texts += [content.text] if content.text is not None else []
        draft.calls += [content.call] if content.call is not None else []


_HINTS = {"compaction": "send the conversation as messages"}


def _parse_content(value: Any, where: str, images: ImageFilter | None) -> str:
    """Parse a string, or join parts: texts, and the placeholders of images where those may be left out."""
    if isinstance(value, str):
        return value
    if not is_array(value):
        raise RequestError(f"{where} must be a string or a list of parts, got {describe_json(value)}", param=where)
    return "".join(
        _parse_part(get_object(part, f"{where}[{index}]"), f"{where}[{index}]", images)
        for index, part in enumerate(value)
    )


def _parse_part(part: JsonObject, where: str, images: ImageFilter | None) -> str:
    kind = part.get("type")
    placeholder = images.find_placeholder(part) if images is not None else None
    if placeholder is not None:
        return placeholder
    if kind == "refusal":
        return get_text(part.get("refusal"), f"{where}.refusal")
    if kind not in TEXT_PARTS:
        raise RequestError(
            f"{where}.type {kind!r} is not served: sessions hold text only",
            hint=IMAGE_HINT if kind in IMAGE_TYPES else "files cannot be replayed token by token",
            param=f"{where}.type",
        )
    return get_text(part.get("text"), f"{where}.text")


def _join_texts(value: Any, where: str) -> str:
    """Join the texts of a reasoning item's parts, whatever their type; empty where there are none."""
    parts = get_list(value, where)
    return "".join(
        get_text(get_object(part, f"{where}[{index}]").get("text"), f"{where}[{index}].text")
        for index, part in enumerate(parts)
    )
