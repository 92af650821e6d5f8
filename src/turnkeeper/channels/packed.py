"""Payload text to ids while it comes in: what is held is the ids in their smallest dtype, never the text.

Base64 of int32 takes 5.3 bytes an id, and most models have 256 experts or fewer: one byte. A whole payload of a path
of 128k tokens is 250 MiB of text, and 47 MiB here. Knows no rows and no model: each block of ids gets the smallest
dtype that holds all of it, so that ids which no expert has stay what they are. Blocks of one dtype lie in few large
pieces of memory: looking through all rows of that path takes 5 ms then, not 11.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pybase64
from numpy.typing import NDArray

from turnkeeper.errors import EngineProtocolError

Text: TypeAlias = str | bytes | bytearray | memoryview
"""Base64 text, as a JSON string's content or as the bytes between its quotes."""

_NPY_MAGIC = b"\x93NUMPY"
"""The bytes with which a ``.npy`` file begins."""

_GROUP = 16
"""Characters that are whole ids: 16 characters are 12 bytes are 3 ids."""
_BLOCK = 1 << 18
"""Characters decoded at a time; what they take stays in the processor's cache."""
SEGMENT_IDS = 1 << 20
"""Ids in one piece of memory: many, so that few steps go through all of them, and few enough for the cache."""
_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.int32))
_NO_IDS = np.empty(0, np.uint8)
_PLAIN = re.compile(rb"[A-Za-z0-9+/]*={0,2}")
_QUOTED = 24
"""Characters of a text that an error message quotes."""


class PackedIds:
    """The ids of one payload. Feed it all of the text, then finish it.

    A ``.npy`` file is kept as the bytes that it is (``npy``): its header says what is in it.
    """

    def __init__(self) -> None:
        """Start with an empty text."""
        self.characters = 0
        self.size_bytes = 0
        """The number of bytes that the text stands for."""
        self.error = ""
        """The reason why the text is not base64; empty where it is."""
        self.npy: bytearray | None = None
        """The bytes of a ``.npy`` file; None where the text is bare ids."""
        self._quoted = b""
        self._rest = b""
        self._is_padded = False
        self._segments: list[_Segment] = []

    @classmethod
    def pack(cls, text: Text) -> "PackedIds":
        """Decode a whole text at once."""
        packed = cls()
        packed.feed(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        packed.finish()
        return packed

    def feed(self, text: bytes | bytearray | memoryview) -> None:
        """Take the next part of the text. What is no base64 is noted, never raised."""
        taken = self.feed_valid(text)
        if taken < len(text):
            self._note(text[taken:])
            refused = self._rest + bytes(text[taken : taken + _BLOCK])
            self.error = self.error or _explain(refused, is_padded=self._is_padded)

    def feed_valid(self, text: bytes | bytearray | memoryview) -> int:
        """Take the next part of the text, up to the block in which something is no base64.

        Returns:
            How many characters were taken; the others may come again. None behind what was no base64.
        """
        view = memoryview(text)
        if self.error:
            return 0
        taken = self._complete_rest(view) if self._rest else 0
        if not self._rest:
            whole = taken + (len(view) - taken) // _GROUP * _GROUP
            while taken < whole and self._decode(view[taken : min(taken + _BLOCK, whole)]):
                taken = min(taken + _BLOCK, whole)
            if taken == whole and not self._is_padded and _PLAIN.fullmatch(view[whole:]):
                self._rest = bytes(view[whole:])
                taken = len(view)
        self._note(view[:taken])
        return taken

    def _complete_rest(self, view: memoryview) -> int:
        """Decode the rest of the chunk before, together with the characters that complete it. Only these are joined,
        since joining it to all of a chunk would copy the chunk."""
        missing = _GROUP - len(self._rest)
        group = self._rest + bytes(view[:missing])
        if len(group) == _GROUP and self._decode(memoryview(group)):
            self._rest = b""
            return missing
        if len(group) < _GROUP and _PLAIN.fullmatch(group):
            self._rest = group
            return len(view)
        return 0

    def _note(self, text: bytes | bytearray | memoryview) -> None:
        self.characters += len(text)
        if len(self._quoted) < _QUOTED:
            self._quoted += bytes(text[: _QUOTED - len(self._quoted)])

    def finish(self) -> None:
        """Take note that the text is complete, and decode what is left of it."""
        if self._rest and not self.error and not self._decode(memoryview(self._rest)):
            self.error = _explain(self._rest, is_padded=self._is_padded)
        self._rest = b""
        if self._segments:
            self._segments[-1].fit()

    def _decode(self, text: memoryview) -> bool:
        """Keep what the text stands for; False where it is no base64, or comes behind padding."""
        if self._is_padded:
            return False
        try:
            raw = pybase64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return False
        if not self.size_bytes and raw.startswith(_NPY_MAGIC):
            self.npy = bytearray()
        self.size_bytes += len(raw)
        self._is_padded = len(raw) * 4 != len(text) * 3
        if self.npy is not None:
            self.npy += raw
        else:
            self._add(np.frombuffer(raw, dtype="<i4", count=len(raw) // 4))
        return True

    def _add(self, ids: NDArray[np.int32]) -> None:
        dtype = _choose_dtype(ids)
        if not self._segments or not self._segments[-1].has_room(len(ids), dtype):
            self._segments.append(_Segment(dtype))
        self._segments[-1].add(ids)

    def __len__(self) -> int:
        """Return the length of the text in characters."""
        return self.characters

    @property
    def excerpt(self) -> str:
        """The beginning of the text, and its length, for error messages."""
        return f"{self._quoted.decode('utf-8', 'replace')!r}... ({self.characters} characters)"

    def iter_units(self, unit: int) -> Iterator[NDArray[Any]]:
        """Yield all ids in runs of whole units, each of shape [some x unit]; what is left over at the end is left
        out."""
        rest: NDArray[Any] = _NO_IDS
        for segment in self._segments:
            ids = segment.ids
            if len(rest):  # the unit that lies across is given by itself, so that nothing else is copied
                missing = unit - len(rest)
                rest, ids = np.concatenate([rest, ids[:missing]]), ids[missing:]
                if len(rest) < unit:
                    continue
                yield rest
            whole = len(ids) // unit * unit
            rest = ids[whole:]
            if whole:
                yield ids[:whole]


class _Segment:
    """Ids one after the other in one piece of memory."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._held = np.empty(SEGMENT_IDS, dtype)
        self._count = 0

    @property
    def ids(self) -> NDArray[Any]:
        return self._held[: self._count]

    def has_room(self, count: int, dtype: np.dtype[Any]) -> bool:
        return self._held.dtype == dtype and self._count + count <= len(self._held)

    def add(self, ids: NDArray[np.int32]) -> None:
        stop = self._count + len(ids)
        np.copyto(self._held[self._count : stop], ids, casting="unsafe")
        self._count = stop

    def fit(self) -> None:
        """Give back the memory that was kept for more."""
        self._held.resize(self._count, refcheck=False)


Payload: TypeAlias = Text | PackedIds
"""Base64 text, or what it was decoded to while it came in."""


def pack_payload(payload: Payload, name: str) -> PackedIds:
    """Decode a payload, unless it was decoded while it came in.

    Raises:
        EngineProtocolError: it is not base64; the message names it as ``name``.
    """
    packed = payload if isinstance(payload, PackedIds) else PackedIds.pack(payload)
    if packed.error:
        raise EngineProtocolError(
            f"{name} must be standard base64, got {packed.excerpt}: {packed.error}",
            hint="something between the engine and this server changes replies",
        )
    return packed


def _choose_dtype(ids: NDArray[np.int32]) -> np.dtype[Any]:
    """Choose the smallest dtype that holds all ids; where one is negative, that is int32."""
    top = int(ids.view(np.uint32).max()) if len(ids) else 0  # seen as unsigned, a negative id is a huge one
    return _DTYPES[0] if top < 1 << 8 else _DTYPES[1] if top < 1 << 16 else _DTYPES[2]


def _explain(text: bytes, *, is_padded: bool) -> str:
    """Explain why a text is no base64."""
    if is_padded:
        return "it is padded in the middle"
    try:
        pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        return str(error)
    return "it has a character that is none of base64's"
