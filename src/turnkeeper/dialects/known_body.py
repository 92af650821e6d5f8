"""Bodies that repeat the conversation of the body before them, of which only what is new is parsed.

::

    body 1   {"model": "m", "messages": [ s, u         ], "tools": [...]}
    body 2   {"model": "m", "messages": [ s, u, a, t   ], "tools": [...]}
             |-------- known ---------|  |--- rest -----------------|

The bytes up to the last known message are recognised by hashes, one for each part that a request added, so that no
body has to be kept. Behind them an array of messages is open: what follows is parsed as if the known ones were one
value. Every step proves what it relies on by parsing; what cannot be proved is parsed as a whole.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_128_intdigest

from turnkeeper.dialects.jsonbody import LARGE_BYTES, parse_json, parse_object
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, is_array

MESSAGES = "messages"
"""The member that repeats the conversation."""

_OPENING = re.compile(rb'"messages"\s*:\s*\[')
_DECODER = json.JSONDecoder()
_STAND_IN_VALUE = "turnkeeper: the messages"
_STAND_IN = b'"messages":"turnkeeper: the messages"'
"""Stands for the messages where head and tail are parsed without them; another member of that name would replace it."""


_KEY = hash(MESSAGES) & 0xFFFFFFFFFFFFFFFF
"""Another number in every process, as Python's own hashes, so that nobody can prepare two texts of one hash."""


def _hash(text: bytes | memoryview) -> int:
    """Hash a part of a body in 128 bits; Python's own hash of bytes takes ten times as long."""
    return xxh3_128_intdigest(text, _KEY)


@dataclass(frozen=True, slots=True)
class KnownBody:
    """The beginning of a body, up to the end of its last message."""

    head: JsonObject
    """The members before the messages."""
    parts: tuple[tuple[int, int], ...]
    """Where each part ends, in bytes from the beginning, and the hash of the part."""
    tail: JsonObject
    """The members behind the messages."""
    tail_bytes: int
    """How many bytes followed the last message, which is likely to be so in the next body too."""
    tail_hash: int
    """The hash of those bytes."""

    @property
    def size_bytes(self) -> int:
        """The length of the beginning."""
        return self.parts[-1][0]

    @property
    def members_bytes(self) -> int:
        """The length of the members before and behind the messages."""
        return self.parts[0][0] + self.tail_bytes

    def begins(self, body: bytes) -> bool:
        """Tell whether a body begins with the same bytes."""
        view, start = memoryview(body), 0
        for end, digest in self.parts:
            if end >= len(body) or _hash(view[start:end]) != digest:
                return False
            start = end
        return True


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A parsed body."""

    value: JsonObject
    """The body; where it continues a known one, ``messages`` holds only those behind the known ones."""
    is_continued: bool
    """True where the known messages were left out."""
    known: KnownBody | None
    """What the next body is expected to begin with; None where the body has no messages, or is large."""


def parse_body(body: bytes, known: KnownBody | None) -> ParsedBody:
    """Parse a body, without the messages that are known where it begins as a known body does.

    Raises:
        RequestError: the body is no JSON object.
    """
    if len(body) <= LARGE_BYTES:
        try:
            parsed = _parse_parts(body, known)
        except (RequestError, ValueError, RecursionError):
            parsed = None  # whatever is wrong is said of the whole body
        if parsed is not None:
            return parsed
    return ParsedBody(value=parse_object(body), is_continued=False, known=None)


def _parse_parts(body: bytes, known: KnownBody | None) -> ParsedBody | None:
    """Parse head, messages and tail of a body one by one; None where its messages cannot be found in this way."""
    if known is not None and known.begins(body):
        return _parse_behind(body, known, known, is_continued=True)
    opening = _OPENING.search(body)
    if opening is None:
        return None
    # The array that was opened is a member of the body itself if this is an object: no other is open before it.
    head = parse_object(body[: opening.start()] + _STAND_IN + b"}")
    del head[MESSAGES]
    start = opening.end()
    begun = KnownBody(head=head, parts=((start, _hash(body[:start])),), tail={}, tail_bytes=0, tail_hash=0)
    return _parse_behind(body, begun, begun if known is None else known, is_continued=False)


def _parse_behind(body: bytes, known: KnownBody, last: KnownBody, *, is_continued: bool) -> ParsedBody | None:
    """Parse what stands behind the beginning of a body, where the array of messages is open; ``last`` is the body that
    tells what to expect at the end."""
    start, before = known.size_bytes, b"{}" if is_continued else b""
    close = len(body) - last.tail_bytes
    items = _parse_items(before, body[start:close]) if body[close : close + 1] == b"]" else None
    if items is None:
        close = _find_close(before, body, start)
        items = _parse_items(before, body[start:close])
    if items is None:
        return None
    tail_hash = _hash(body[close:])
    if tail_hash == last.tail_hash and len(body) - close == last.tail_bytes:
        tail = last.tail
    else:
        tail = parse_object(b"{" + _STAND_IN + body[close + 1 :])
        if tail.pop(MESSAGES) != _STAND_IN_VALUE:
            return None
    value = {**known.head, MESSAGES: items[1:] if is_continued else items, **tail}
    end = start + len(body[start:close].rstrip())
    # Behind an object nothing can follow but a comma or the end of the array; a number could go on.
    parts = (*known.parts, (end, _hash(body[start:end])))
    next_known = KnownBody(head=known.head, parts=parts, tail=tail, tail_bytes=len(body) - close, tail_hash=tail_hash)
    return ParsedBody(
        value=value, is_continued=is_continued, known=next_known if body.endswith(b"}", start, end) else None
    )


def _parse_items(before: bytes, text: bytes) -> list[Any] | None:
    """Parse the text of the rest of an array, as deep as it lies in a body; None where it is more or less than that."""
    try:
        arrays = parse_json(b"[[" + before + text + b"]]")
    except RequestError:
        return None
    return arrays[0] if len(arrays) == 1 and is_array(arrays[0]) else None


def _find_close(before: bytes, body: bytes, start: int) -> int:
    """Find the bracket that closes the array that is open at ``start``.

    Raises:
        ValueError: there is none.
    """
    text = (b"[" + before + body[start:]).decode()
    _, end = _DECODER.raw_decode(text)
    return start + len(text[: end - 1].encode()) - 1 - len(before)
