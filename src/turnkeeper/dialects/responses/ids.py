"""The ids of a reply's items: given when the reply is built, resolved when a client sends one in place of its item.

::

    rs_HEX_0   msg_HEX_0   fc_HEX_0   fc_HEX_1        the items of the reply resp_HEX: kind, reply, place in its kind
    rs_HEX_0.1                                        a stream that came back to reasoning: one more part of its text

An id follows from the reply alone, so that a stream, a body and a replay of either give the same ids. An SDK's client
that trusts the service to store items sends ``{"type": "item_reference", "id": ...}`` for them in later requests.
Others call a call by the id of its item wherever its own looks as if replies repeated it (``call_0``).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from turnkeeper.jsontypes import JsonObject, Message

FindReply: TypeAlias = Callable[[str], Message | None]
"""The assistant message that a session delivered under the id of a response; None where it delivered none."""

RESPONSE_PREFIX = "resp_"
REASONING, TEXT, CALL, CUSTOM_CALL = "rs", "msg", "fc", "ctc"
RAW_CUSTOM_CALL = "ctcraw"
"""Marks custom calls whose sampled arguments were not one string in an object: their input is the arguments' text."""

_CALLS = (CALL, CUSTOM_CALL, RAW_CUSTOM_CALL)
_ITEM_ID = re.compile(
    rf"({'|'.join((REASONING, TEXT, *_CALLS))})_([0-9a-zA-Z_]+)_(0|[1-9][0-9]{{0,5}})(\.[1-9][0-9]{{0,5}})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemContent:
    """The part of an assistant message that one item of a reply holds: reasoning, text or a call."""

    reasoning: str | None = None
    text: str | None = None
    call: JsonObject | None = None


def name_item(kind: str, response_id: str, place: int, part: int = 0) -> str:
    """Build the id of an item.

    Args:
        kind: one of the prefixes above.
        response_id: the reply's.
        place: which one of its kind it is, from 0.
        part: which part of one text it is, where a stream gives the text in several items.
    """
    return f"{kind}_{response_id.removeprefix(RESPONSE_PREFIX)}_{place}" + (f".{part}" if part else "")


def find_reply_hex(item_id: Any) -> str | None:
    """Find the hex digits of the reply that an item's id names; None where the value is no such id."""
    match = _ITEM_ID.fullmatch(item_id) if isinstance(item_id, str) else None
    return match[2] if match else None


def resolve_call_id(call_id: str, find_reply: FindReply) -> str:
    """Resolve a call's id: some clients send the id of the call's item in its place. Any other id stays as it came."""
    content = resolve_item(call_id, find_reply)
    return content.call["id"] if content is not None and content.call is not None else call_id


def resolve_item(item_id: str, find_reply: FindReply) -> ItemContent | None:
    """Find the content of the item with this id; None where no reply of the session has such an item.

    The first part of a text gives the whole text, and its further parts give nothing.
    """
    match = _ITEM_ID.fullmatch(item_id)
    message = find_reply(RESPONSE_PREFIX + match[2]) if match else None
    if match is None or message is None:
        return None
    kind, place, is_further = match[1], int(match[3]), match[4] is not None
    calls: list[JsonObject] = message.get("tool_calls") or []
    if kind in _CALLS:
        return ItemContent(call=calls[place]) if place < len(calls) and not is_further else None
    if place:
        return None
    if kind == REASONING:
        reasoning = message.get("reasoning_content")
        return ItemContent(reasoning="" if is_further else reasoning) if reasoning else None
    content = message.get("content") or ""
    return ItemContent(text="" if is_further else content) if content or not calls else None
