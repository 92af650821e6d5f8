"""The JSON bodies of engines: large payloads are decoded apart from the JSON, and JSON as Python writes it is accepted.

Pure. Knows JSON, and the names of payloads from the side channels; knows no wire's layout.

A routing payload of a long turn takes megabytes of base64, and parsing it as a JSON string costs more than all the
rest of the turn. It is found by its key in the raw bytes, replaced by a number, which no engine sends there, and
decoded while it comes in:

    ..."routed_experts": "AAEC...=="...   ->   ..."routed_experts": 0...     payloads[0] = PackedIds(0, 1, 2, ...)

So the text of a payload is never held: 64 MiB of it take 17 ms of CPU, with reading them from the connection in a
thread of their own.

Engines in Python also write ``NaN``, ``Infinity`` and lone surrogates, which JSON has not: the strict parser is tried
first, and a lenient one reads what it refuses.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import orjson

from turnkeeper.channels import CHANNELS, PackedIds
from turnkeeper.channels.id_lists import IdLists, cut_id_lists
from turnkeeper.engines.token_logprobs import TokenLogprobs, cut_token_logprobs
from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import JsonObject, is_number, replace_surrogates

Bytes: TypeAlias = bytes | bytearray
Body: TypeAlias = "Bytes | ReplyBody"
"""The body of a reply, whole or as it was read."""

_SMALL_BYTES = 256
"""Payloads that are shorter are left in the JSON: cutting them out gains nothing."""

_VALUE_BYTES = 64
"""The number of bytes behind its key within which a payload begins."""

_VALUE_START = re.compile(rb'\s*:\s*"')


class ReplyBody:
    """A body that is read while it comes in: ``text`` has all of it, with an index in place of each large payload.

    A key inside a string cannot be mistaken for one: there its quotes are escaped. A payload that begins with an escape
    is left to the parser.
    """

    def __init__(self, *, holds_payloads: bool = True) -> None:
        """Expect the first part of a body.

        Args:
            holds_payloads: True if payloads were asked for; otherwise a payload stays in the text.
        """
        self.text = bytearray()
        self.payloads: list[PackedIds] = []
        self._holds_payloads = holds_payloads
        self._keys = CHANNELS.payload_keys
        self._longest_key = max(map(len, self._keys), default=1)
        self._searched = 0
        self._open: PackedIds | None = None
        self._backslash = b""

    @classmethod
    def read(cls, body: Bytes) -> "ReplyBody":
        """Read a body that is there as a whole."""
        found = cls()
        found.feed(body)
        return found

    def feed(self, chunk: Bytes | memoryview) -> None:
        """Take the next part of the body."""
        if not self._holds_payloads:
            self.text += chunk
            return
        rest = chunk
        while rest:
            if self._open is None:
                self.text += rest
                rest = self._find_payload()
            else:
                rest = self._take_payload(self._open, rest)

    def _find_payload(self) -> Bytes:
        """Search new text for the beginning of a payload, and return what follows its opening quote."""
        while True:
            places = [(place, key) for key in self._keys if (place := self.text.find(key, self._searched)) >= 0]
            if not places:
                self._searched = max(self._searched, len(self.text) - self._longest_key + 1)
                return b""
            place, key = min(places)
            self._searched = place
            after = place + len(key)
            opened = _VALUE_START.match(self.text, after, after + _VALUE_BYTES)
            start = opened.end() if opened is not None else after + _VALUE_BYTES
            quote = self.text.find(b'"', start, start + _SMALL_BYTES)
            if len(self.text) < start + _SMALL_BYTES and (opened is None or quote < 0):
                return b""  # more must come before anything can be said
            is_escaped = self.text.endswith(b"\\", 0, place) or self.text.find(b"\\", start, start + _SMALL_BYTES) >= 0
            if opened is not None and quote < 0 and not is_escaped:
                return self._begin_payload(start)
            self._searched = after

    def _begin_payload(self, start: int) -> Bytes:
        rest = self.text[start:]
        self.text[start - 1 :] = b"%d" % len(self.payloads)
        self._searched = len(self.text)
        self._open = PackedIds()
        self.payloads.append(self._open)
        return rest

    def _take_payload(self, payload: PackedIds, chunk: Bytes | memoryview) -> Bytes:
        """Decode the payload's share of a chunk, and return what follows its closing quote."""
        # Decoding finds the end of the text, or an escape in it, as fast as looking for them would.
        taken = 0 if self._backslash else payload.feed_valid(chunk)
        if taken == len(chunk):
            return b""
        raw = self._backslash + bytes(chunk[taken:])
        self._backslash = b""
        stop = raw.find(b'"')
        own = raw if stop < 0 else raw[:stop]
        if b"\\" in own:
            own = own.replace(b"\\/", b"/")  # some writers escape slashes
            if stop < 0 and own.endswith(b"\\"):
                own, self._backslash = own[:-1], b"\\"
        payload.feed(own)
        if stop < 0:
            return b""
        payload.finish()
        self._open = None
        return raw[stop + 1 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReply:
    """A parsed reply and the payloads that were cut out of it."""

    value: JsonObject
    payloads: Sequence[PackedIds] = ()
    is_strict: bool = True
    """True if the reply was strict JSON, so that no number in it is NaN or infinite."""
    lists: Mapping[str, IdLists] = field(default_factory=dict[str, IdLists])
    """Lists of ids that were cut out before parsing, by their keys."""
    sampled: TokenLogprobs | None = None
    """The entries of ``output_token_logprobs``, where they were cut out before parsing."""

    def take_payload(self, holder: Mapping[str, Any], key: str) -> bytes | PackedIds | IdLists | None:
        """Return the payload under a key, decoded, as text, or as lists that were cut out; None where there is none.

        Raises:
            EngineProtocolError: the value is not text.
        """
        value = holder.get(key)
        if value is None:
            return self.lists.get(key)
        if isinstance(value, str):
            return value.encode("utf-8", "replace")
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(self.payloads):
            return self.payloads[value]
        raise EngineProtocolError(f"{key} is a {type(value).__name__}, expected base64 text")


def cut_choice_logprobs(text: bytearray) -> bytearray:
    """Cut the choice's ``logprobs`` from the text of a chat reply, where they are written as by SGLang.

    They repeat ``meta_info``, take two thirds of the reply's objects, and are not read: a turn with 332 tokens takes
    0.2 ms less without them. A cut in a wrong place leaves no JSON, and the reply is then parsed whole.
    """
    start = text.find(b'"logprobs":{"content":[')
    stop = text.find(b']},"finish_reason":', start) if start >= 0 else -1
    if stop < 0 or any(text.find(key, start, stop) >= 0 for key in (b'"message":', b'"meta_info":')):
        return text
    return text[:start] + b'"logprobs":null' + text[stop + 2 :]


def parse_reply(body: Body, url: str, *, cut_logprobs: bool = False, list_keys: Sequence[str] = ()) -> JsonReply:
    """Parse an engine's reply.

    Args:
        body: the reply.
        url: where it came from.
        cut_logprobs: True to read the tokens with their log-probabilities apart from the JSON, which is much faster;
            null then stands in their place.
        list_keys: the members that are lists of lists of ids, which are read apart as well.

    Raises:
        EngineProtocolError: the body is empty, truncated, HTML or other text, or JSON that is not an object.
    """
    read = body if isinstance(body, ReplyBody) else ReplyBody.read(body)
    shortened, sampled = cut_token_logprobs(cut_choice_logprobs(read.text)) if cut_logprobs else (read.text, None)
    lists: dict[str, IdLists] = {}
    for key in list_keys:
        shortened, found = cut_id_lists(shortened, key)
        if found is not None:
            lists[key] = found
    is_strict = True
    try:
        value = orjson.loads(shortened)
    except orjson.JSONDecodeError:
        is_strict, value, sampled, lists = *_parse_whole(read.text, url), None, {}
    if not isinstance(value, dict):
        raise EngineProtocolError(
            f"the engine at {url} answered a JSON {_name_kind(value)}, expected an object", url=url
        )
    return JsonReply(
        value=cast(JsonObject, value), payloads=read.payloads, is_strict=is_strict, lists=lists, sampled=sampled
    )


def _parse_whole(text: bytearray, url: str) -> tuple[bool, object]:
    """Parse a reply with nothing cut out of it; the first value is True if it is strict JSON."""
    try:
        return True, orjson.loads(text)
    except orjson.JSONDecodeError:
        return False, _parse_leniently(text, url)


def _parse_leniently(body: bytearray, url: str) -> object:
    try:
        return replace_surrogates(json.loads(body.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        start = bytes(body[:80]).decode("utf-8", "replace").strip()
        found = f"{len(body)} bytes that start {start!r}" if start else "an empty body"
        raise EngineProtocolError(
            f"the engine at {url} answered {found}, expected a JSON object",
            hint="a proxy's error page, or a reply that was cut short",
            url=url,
        ) from error


def expect_object(value: object, name: str, url: str, *, hint: str = "") -> JsonObject:
    """Return a value that has to be an object.

    Raises:
        EngineProtocolError: the value is something else; the message names ``name``.
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
    """Replace NaN and infinities in a part of a reply by null. Strict JSON has none, and is returned as it is."""
    return value if reply.is_strict else replace_nonfinite(value)


def replace_nonfinite(value: Any) -> Any:
    """Replace NaN, infinities and numbers that no double holds by null, in a whole JSON value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if is_number(value) else None
    if isinstance(value, list):
        return [replace_nonfinite(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in cast(JsonObject, value).items()}
    return value
