"""Reading the JSON bodies of engines: large payloads are cut out before parsing, and what is not quite JSON is mended.

Pure. Knows JSON and the names of the payload fields; knows no wire's layout.

A routing payload of a long turn takes megabytes of base64, and parsing it as a JSON string costs more than all the
rest of the turn. It is found by its key in the raw bytes and replaced by a number, which no engine sends there:

    ..."routed_experts": "AAEC...=="...   ->   ..."routed_experts": 0...     payloads[0] = b"AAEC...=="

Engines in Python also write ``NaN``, ``Infinity`` and lone surrogates, which JSON has not: the strict parser is tried
first, and a lenient one reads what it refuses.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from turnkeeper.core.tokens import Span
from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import JsonObject, is_number, replace_surrogates

Body: TypeAlias = bytes | memoryview
"""A reply's body; large ones are views."""

_BLOCK_BYTES = 1 << 18
"""Views cannot be searched, bytes can: a view is searched in copies of so many bytes, which stay in the cache."""

_SMALL_BYTES = 256
"""Payloads shorter than this are left in place: cutting them out gains nothing."""

_PAYLOAD_KEYS = (b'"routed_experts"', b'"indexer_topk"', b'"prompt_routed_experts"')
_VALUE_START = re.compile(rb'\s*:\s*"')


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReply:
    """A parsed reply and the payloads that were cut out of it."""

    value: JsonObject
    payloads: tuple[memoryview, ...] = ()
    is_strict: bool = True
    """Whether it was JSON: then no number in it is NaN or infinite."""

    def take_payload(self, holder: Mapping[str, Any], key: str) -> bytes | memoryview | None:
        """The payload under a key, wherever it ended up; None when the key is absent or null.

        Raises:
            EngineProtocolError: the value is no text.
        """
        value = holder.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            return value.encode("utf-8", "replace")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(self.payloads):
            return self.payloads[value]
        raise EngineProtocolError(f"{key} is a {type(value).__name__}, expected base64 text")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBody:
    """A body without its payloads."""

    body: Body
    payloads: tuple[memoryview, ...]


def cut_payloads(body: Body) -> CutBody:
    """Replace each large payload string by its index.

    A key inside a string cannot be mistaken for one: there its quotes are escaped. A payload that holds an escape is
    left to the parser. Payloads are views of the body, which stays in memory for as long as one of them.
    """
    spans = _find_payloads(body)
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    position = 0
    for index, span in enumerate(spans):
        pieces += [view[position : span.start - 1], str(index).encode()]
        position = span.stop + 1
    cut = b"".join([*pieces, view[position:]]) if spans else body
    return CutBody(body=cut, payloads=tuple(view[span.start : span.stop] for span in spans))


def _find_payloads(body: Body) -> list[Span]:
    """Where large payloads lie, between their quotes, in order.

    Nothing is searched twice, least of all a payload: bytes.find needs 70 ms for 64 MiB.
    """
    found: list[Span] = []
    gaps = [Span(start=0, stop=len(body))]
    for key in _PAYLOAD_KEYS:
        left: list[Span] = []
        while gaps:
            gap = gaps.pop(0)
            span = _find_payload(body, key, gap)
            if span is None:
                left.append(gap)
            else:
                found.append(span)
                left.append(Span(start=gap.start, stop=span.start))
                gaps.insert(0, Span(start=span.stop, stop=gap.stop))
        gaps = left
    return sorted(found, key=lambda span: span.start)


def _find_payload(body: Body, key: bytes, gap: Span) -> Span | None:
    """The first large payload of a key that begins inside a stretch of the body."""
    position = find_bytes(body, key, gap.start, gap.stop)
    while position >= 0:
        opened = _VALUE_START.match(body, position + len(key), position + len(key) + 64)
        is_key = opened is not None and body[position - 1 : position] != b"\\"
        if is_key and opened is not None:
            start = opened.end()
            stop = find_text_end(body, start)
            if stop - start >= _SMALL_BYTES:
                return Span(start=start, stop=stop)
        position = find_bytes(body, key, position + len(key), gap.stop)
    return None


def find_bytes(body: Body, sought: bytes, start: int, stop: int) -> int:
    """Where ``sought`` first stands between two places; -1 where it does not."""
    if isinstance(body, bytes):
        return body.find(sought, start, stop)
    for begin in range(start, stop, _BLOCK_BYTES):
        block = bytes(body[begin : min(begin + _BLOCK_BYTES + len(sought) - 1, stop)])
        place = block.find(sought)
        if place >= 0:
            return begin + place
    return -1


def find_text_end(body: Body, start: int) -> int:
    """Where the closing quote of a text stands that begins at ``start``; -1 where it holds an escape or never ends."""
    for begin in range(start, len(body), _BLOCK_BYTES):
        block = bytes(body[begin : begin + _BLOCK_BYTES])
        place = block.find(b'"')
        if block.find(b"\\", 0, place if place >= 0 else len(block)) >= 0:
            return -1
        if place >= 0:
            return begin + place
    return -1


def parse_reply(body: Body, url: str) -> JsonReply:
    """Parse an engine's reply.

    Raises:
        EngineProtocolError: empty, truncated, HTML or another kind of text, or JSON that is not an object.
    """
    cut = cut_payloads(body)
    is_strict, value = True, None
    try:
        value = orjson.loads(cut.body)
    except orjson.JSONDecodeError:
        is_strict, value = False, _parse_leniently(cut.body, url)
    if not isinstance(value, dict):
        raise EngineProtocolError(
            f"the engine at {url} answered a JSON {_name_kind(value)}, expected an object", url=url
        )
    return JsonReply(value=cast(JsonObject, value), payloads=cut.payloads, is_strict=is_strict)


def _parse_leniently(body: Body, url: str) -> object:
    try:
        return replace_surrogates(json.loads(bytes(body).decode("utf-8")))
    except (ValueError, RecursionError) as error:
        start = bytes(body[:80]).decode("utf-8", "replace").strip()
        found = f"{len(body)} bytes that start {start!r}" if start else "an empty body"
        raise EngineProtocolError(
            f"the engine at {url} answered {found}, expected a JSON object",
            hint="a proxy's error page, or a reply that was cut short",
            url=url,
        ) from error


def expect_object(value: object, name: str, url: str, *, hint: str = "") -> JsonObject:
    """The value as an object.

    Raises:
        EngineProtocolError: it is something else; the message names ``name``.
    """
    if not isinstance(value, dict):
        raise EngineProtocolError(
            f"the reply of {url} has no object {name}, found {type(value).__name__}", hint=hint, url=url
        )
    return cast(JsonObject, value)


def _name_kind(value: object) -> str:
    kinds = {"list": "array", "str": "string", "bool": "boolean", "NoneType": "null"}
    return kinds.get(type(value).__name__, "number")


def clean_numbers(reply: JsonReply, value: Any) -> Any:
    """A part of a reply with NaN and infinities replaced by null; strict JSON has none, and is given back as it is."""
    return value if reply.is_strict else replace_nonfinite(value)


def replace_nonfinite(value: Any) -> Any:
    """The same JSON value with NaN, infinities and numbers that no double holds replaced by null."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if is_number(value) else None
    if isinstance(value, list):
        return [replace_nonfinite(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in cast(JsonObject, value).items()}
    return value
