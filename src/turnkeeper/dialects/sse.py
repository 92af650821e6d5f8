"""Server-sent events as bytes. Knows no dialect.

An event is ``event: NAME`` (optional) and ``data: ...`` lines, ended by a blank line. Everything sent here is whole
events, so that a strict line parser never sees half of one.

JSON may hold U+0085, U+2028 and U+2029 as they are, and the standard of event streams does not end a line there.
Clients that split lines with Python's ``str.splitlines`` do end lines there, so these characters are sent as escapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from turnkeeper.jsontypes import encode_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One received event."""

    name: str | None
    """The value of ``event:``; None where the event has none."""
    data: str
    """The values of ``data:``, joined by newlines."""


def encode_event(payload: Any, name: str | None = None) -> bytes:
    """Encode an event whose data is a JSON value."""
    return encode_text_event(encode_json(payload), name)


def encode_text_event(data: bytes, name: str | None = None) -> bytes:
    """Encode an event whose data is JSON that is already encoded, or another text without line breaks."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _escape_line_breaks(data) + b"\n\n"


_LINE_BREAKS = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u0085\u2028\u2029")
"""The characters that some clients take for the end of a line, in UTF-8, each with its escape in a JSON string."""


def _escape_line_breaks(data: bytes) -> bytes:
    for raw, escaped in _LINE_BREAKS:
        data = data.replace(raw, escaped)
    return data


def parse_events(stream: bytes) -> Iterator[Event]:
    """Parse a complete stream; comments are skipped, and an event that no blank line ends is left out."""
    *blocks, _ = stream.decode().replace("\r\n", "\n").split("\n\n")
    for block in blocks:
        fields = [line.partition(":")[::2] for line in block.split("\n") if line and not line.startswith(":")]
        data = [value.removeprefix(" ") for key, value in fields if key == "data"]
        names = [value.removeprefix(" ") for key, value in fields if key == "event"]
        if data:
            yield Event(name=names[-1] if names else None, data="\n".join(data))
