"""Lists of lists of token ids in the JSON of a reply, read apart from it.

64 ids for each of 300 tokens are 19,200 numbers, for each of which a parser makes an object. Their text is cut out of
the reply and read as one run of numbers instead, in a third of the time::

    ..."sampling_mask":[[7,9],[7]],...   ->   ..."sampling_mask":null,...     ids 7 9 7, counts 2 1

A list in another form stays where it stands, and is read after parsing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from turnkeeper.errors import EngineProtocolError

_PLAIN = b"0123456789,[] "
_COMMA, _OPEN, _CLOSE = b",[]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdLists:
    """Lists of ids, one behind the other."""

    ids: NDArray[np.int64]
    """Shape [M]: the ids of all lists."""
    counts: NDArray[np.int64]
    """Shape [C]: the number of ids of each list."""

    def __len__(self) -> int:
        """Count the lists."""
        return len(self.counts)


def cut_id_lists(text: bytearray, key: str) -> tuple[bytearray, IdLists | None]:
    """Cut the lists under a key out of the text of a reply.

    Returns:
        The text with null in place of the lists, and the lists; or the text as it was, and None, where they have
        another form, hold an empty list, or are missing. A key inside a string is none: there its quotes are escaped.
    """
    found = re.search(rb'(?<!\\)"%s"\s*:\s*(?=\[ *\[)' % key.encode(), text)
    if found is None:
        return text, None
    stop = text.find(b"]]", found.end()) + 2
    listed = bytes(text[found.end() : stop])
    lists = _read_text(listed) if stop > 1 and not listed.translate(None, _PLAIN) else None
    return (text, None) if lists is None else (text[: found.end()] + b"null" + text[stop:], lists)


def _read_text(listed: bytes) -> IdLists | None:
    raw = np.frombuffer(listed.replace(b" ", b""), np.uint8)
    opens, closes = np.flatnonzero(raw == _OPEN)[1:], np.flatnonzero(raw == _CLOSE)[:-1]
    # Between two lists stands one comma, so that brackets alternate and no list stands inside another.
    is_regular = len(opens) == len(closes) and (opens[1:] == closes[:-1] + 2).all() and (closes > opens + 1).all()
    if not is_regular or (raw[closes[:-1] + 1] != _COMMA).any():
        return None
    commas = np.flatnonzero(raw == _COMMA)
    counts = np.searchsorted(commas, closes) - np.searchsorted(commas, opens) + 1
    ids = np.fromstring(listed.translate(None, b"[] "), dtype=np.int64, sep=",")
    return IdLists(ids=ids, counts=counts.astype(np.int64)) if counts.sum() == len(ids) else None


def read_id_lists(value: object, name: str) -> IdLists:
    """Read lists that were parsed as JSON.

    Raises:
        EngineProtocolError: something in them is no list, or no token id.
    """
    lists = cast("Sequence[object]", value) if isinstance(value, list) else ()
    if not isinstance(value, list) or not all(isinstance(each, list) for each in lists):
        raise EngineProtocolError(f"{name} must be a list of token ids for each sampled token, got {value!r:.80}")
    ids = [item for each in lists for item in cast("Sequence[object]", each)]
    if set(map(type, ids)) - {int} or any(not 0 <= item < 1 << 31 for item in cast("Sequence[int]", ids)):
        raise EngineProtocolError(f"{name} must hold token ids, got {str(ids)[:80]}")
    return IdLists(
        ids=np.array(ids, np.int64), counts=np.array([len(cast("Sequence[object]", each)) for each in lists], np.int64)
    )
