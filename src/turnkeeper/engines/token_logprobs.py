"""SGLang's ``output_token_logprobs``: the sampled ids and their log-probabilities.

Pure. SGLang writes one list for each token, ``[logprob, id, text]``, whose text is null unless it was asked for. Parsed
as JSON that is one object for each token, and garbage collection visits all of them. `cut_token_logprobs` therefore
takes the list out of the raw reply and reads it as one flat list of numbers. A list in any other shape is left where it
stands, and `read_token_logprobs` reads it after parsing.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import is_number

_KEY = b'"output_token_logprobs":'
_ENTRY_END = b"null]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """The ids that an engine sampled and their log-probabilities; the two lists are parallel."""

    ids: Sequence[object]
    """The ids as they were parsed, unchecked; `freeze_ids` checks them."""
    logprobs: Sequence[object]
    """The log-probabilities as they were parsed: numbers, or null where the engine has none."""
    is_packable: bool = False
    """True if no value is a boolean, which would be packed as a number."""

    def freeze_ids(self, url: str) -> TokenIds:
        """Return the token ids, shape [T].

        Raises:
            EngineProtocolError: an entry is no token id.
        """
        try:
            packed = self._pack("i", self.ids)
            return freeze_whole_numbers(self.ids) if packed is None else freeze_ids(np.frombuffer(packed, np.int32))
        except (ValueError, OverflowError) as error:
            raise EngineProtocolError(
                f"output_token_logprobs of {url} holds an entry without a token id: {error}", url=url
            ) from error

    def freeze_logprobs(self) -> NDArray[np.float64]:
        """Return the log-probabilities, shape [T], with NaN for an entry that is no number."""
        packed = self._pack("d", self.logprobs)
        if packed is not None:
            return np.frombuffer(packed)
        numbers = (float(value) if isinstance(value, float) or is_number(value) else nan for value in self.logprobs)
        return np.fromiter(numbers, dtype=np.float64, count=len(self.logprobs))

    def _pack(self, kind: str, values: Sequence[object]) -> bytes | None:
        """Pack values, at least one, as numbers of one kind, which takes a fifth of what numpy takes to look at each;
        None where some are of another kind."""
        if not self.is_packable or not values:
            return None
        try:
            return struct.pack(f"={len(values)}{kind}", *values)
        except (struct.error, OverflowError):
            return None


def cut_token_logprobs(text: bytearray) -> tuple[bytearray, TokenLogprobs | None]:
    """Cut the list out of a reply, where every entry is written ``[logprob,id,null]`` without spaces.

    Returns:
        The reply with null in place of the list, and the list's entries; or the reply as it was, and None, where the
        list has another shape, occurs twice, or is missing.
    """
    start = text.find(_KEY + b"[[")
    stop = text.find(_ENTRY_END + b"]", start) + len(_ENTRY_END) + 1
    if start < 0 or stop <= start or text.find(_KEY, stop) >= 0:
        return text, None
    listed = text[start + len(_KEY) : stop]
    try:
        flat: list[object] = orjson.loads(b"[" + listed.translate(None, b"[]") + b"]")
    except orjson.JSONDecodeError:
        return text, None
    count = len(flat) // 3
    # Brackets stand only around the list, around each entry, and nowhere inside one; each entry ends at its only null.
    is_regular = (
        b'"' not in listed
        and listed.count(b"[") == count + 1
        and listed.count(_ENTRY_END + b",[") == count - 1
        and flat[2::3].count(None) == count
        and len(flat) == 3 * count
    )
    if not is_regular:
        return text, None
    rest = text[:start] + _KEY + b"null" + text[stop:]
    has_booleans = b"t" in listed or b"f" in listed  # of all that can stand here, only they have these letters
    return rest, TokenLogprobs(ids=flat[1::3], logprobs=flat[0::3], is_packable=not has_booleans)


def read_token_logprobs(entries: Sequence[Any], url: str) -> TokenLogprobs:
    """Read a list that was parsed as JSON.

    Raises:
        EngineProtocolError: an entry has no id.
    """
    try:
        return TokenLogprobs(ids=[entry[1] for entry in entries], logprobs=[entry[0] for entry in entries])
    except (TypeError, IndexError, KeyError) as error:
        raise EngineProtocolError(
            f"output_token_logprobs of {url} holds an entry without a token id: {error}", url=url
        ) from error


def freeze_whole_numbers(values: Sequence[object]) -> TokenIds:
    """Make token ids of values that were parsed from JSON, where ``true``, ``1.0`` and ``"1"`` are no ids.

    Raises:
        ValueError: an entry is no whole number, negative, or too large.
        OverflowError: an entry is too large for any array.
    """
    strange = sorted(kind.__name__ for kind in set(map(type, values)) - {int})
    if strange:
        raise ValueError(f"token ids are whole numbers, found {', '.join(strange)}")
    return freeze_ids(cast(Sequence[int], values))
