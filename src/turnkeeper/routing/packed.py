"""Payload text to ids while it comes in: what is held is the ids in their smallest dtype, never the text.

Base64 of int32 takes 5.3 bytes an id, and most models have 256 experts or fewer: one byte. A whole payload of a path
of 128k tokens is 250 MiB of text, and 47 MiB here. Knows no rows and no model: each block of ids gets the smallest
dtype that holds all of it, so that ids which no expert has stay what they are.
"""

import binascii
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pybase64
from numpy.typing import NDArray

Text: TypeAlias = str | bytes | bytearray | memoryview
"""Base64 text, as a JSON string's content or as the bytes between its quotes."""

NPY_PREFIX = pybase64.b64encode(b"\x93NUMPY")
"""What the text of a ``.npy`` file begins with."""

_GROUP = 16
"""Characters that are whole ids: 16 characters are 12 bytes are 3 ids."""
_BLOCK = 1 << 18
"""Characters decoded at a time; what they take stays in the processor's cache."""
_QUOTED = 24
"""Characters of a text that an error message quotes."""


class PackedIds:
    """The ids of one payload. Feed it all of the text, then finish it.

    A ``.npy`` file is kept as the bytes that it is (``npy``): its header says what is in it.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.characters = 0
        self.size_bytes = 0
        """How many bytes it stands for."""
        self.error = ""
        """Why it is not base64; empty where it is."""
        self.npy: bytearray | None = None
        """The bytes of a ``.npy`` file; None where the text is bare ids."""
        self._quoted = b""
        self._rest = b""
        self._is_padded = False
        self._blocks: list[NDArray[Any]] = []

    @classmethod
    def pack(cls, text: Text) -> "PackedIds":
        """All of a text at once."""
        packed = cls()
        packed.feed(text.encode("utf-8", "replace") if isinstance(text, str) else text)
        packed.finish()
        return packed

    def feed(self, text: bytes | bytearray | memoryview) -> None:
        """Take the next part of the text. What is no base64 is noted, never raised."""
        self.characters += len(text)
        if self.error:
            return
        if len(self._quoted) < _QUOTED:
            self._quoted += bytes(text[: _QUOTED - len(self._quoted)])
        view = memoryview(text)
        if self._rest:  # completed by itself: joining it to a chunk would copy the chunk
            missing = _GROUP - len(self._rest)
            self._rest += bytes(view[:missing])
            if len(self._rest) < _GROUP:
                return
            self._decode(memoryview(self._rest))
            view = view[missing:]
        whole = len(view) // _GROUP * _GROUP
        self._rest = bytes(view[whole:])
        for start in range(0, whole, _BLOCK):
            self._decode(view[start : min(start + _BLOCK, whole)])

    def finish(self) -> None:
        """The text is complete."""
        if self._rest and not self.error:
            self._decode(memoryview(self._rest))
        self._rest = b""

    def _decode(self, text: memoryview) -> None:
        if self._is_padded:
            self.error = "it is padded in the middle"
        if self.error:
            return
        try:
            raw = pybase64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            self.error = str(error)
            return
        if not self.size_bytes and self._quoted.startswith(NPY_PREFIX):
            self.npy = bytearray()
        self.size_bytes += len(raw)
        self._is_padded = len(raw) * 4 != len(text) * 3
        if self.npy is not None:
            self.npy += raw
        else:
            self._blocks.append(_narrow(np.frombuffer(raw, dtype="<i4", count=len(raw) // 4)))

    def __len__(self) -> int:
        """How long the text was, in characters."""
        return self.characters

    @property
    def excerpt(self) -> str:
        """The beginning of the text, and its length, for error messages."""
        return f"{self._quoted.decode('utf-8', 'replace')!r}... ({self.characters} characters)"

    def iter_units(self, unit: int) -> Iterator[NDArray[Any]]:
        """All ids in runs of whole units, each of shape [some x unit]; what is left over at the end is left out."""
        rest: NDArray[Any] | None = None
        for block in self._blocks:
            ids = block if rest is None or not len(rest) else np.concatenate([rest, block])
            whole = len(ids) // unit * unit
            rest = ids[whole:]
            if whole:
                yield ids[:whole]


def _narrow(ids: NDArray[np.int32]) -> NDArray[Any]:
    """The same ids in the smallest dtype that holds them all; a negative one leaves them as they are."""
    top = int(ids.view(np.uint32).max()) if len(ids) else 0  # seen as unsigned, a negative id is a huge one
    return ids.astype(np.uint8) if top < 1 << 8 else ids.astype(np.uint16) if top < 1 << 16 else ids
