"""The memory of computed tokens: one KV buffer for each sequence, and the prefix cache that requests share.

A buffer grows by appending only: position i was computed from the positions before it *in this buffer*, so a copy
of a buffer's beginning is a valid beginning of another. With each position it keeps the experts its token was
routed to and the stamp of the weights that computed it; a prefix hit hands both on, so a reply's routing rows may
have been captured by an earlier request, under older weights.

Knows no model and no request. Not safe for threads: the scheduler's thread owns all of it.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from turnkeeper.core.tokens import count_common_prefix
from turnkeeper.tiny.model.shape import TinyShape

_Scalar = TypeVar("_Scalar", bound=np.generic)

SMALLEST_CAPACITY = 128
PREFIX_CACHE_TOKENS = 32_768
"""How many positions the prefix cache keeps at most: 128 MiB of keys and values at the default shape."""


class SequenceKV:
    """Keys, values, experts and weight stamps of one sequence's positions ``[0, length)``."""

    __slots__ = ("experts", "keys", "length", "limit", "stamps", "values")

    def __init__(self, shape: TinyShape, capacity: int = SMALLEST_CAPACITY) -> None:
        self.limit = shape.max_position_embeddings
        capacity = min(max(capacity, SMALLEST_CAPACITY), self.limit)
        layers, heads, width = shape.num_hidden_layers, shape.num_attention_heads, shape.head_dim
        self.length = 0
        self.keys: NDArray[np.float32] = np.empty((layers, heads, capacity, width), np.float32)
        """[layers, heads, capacity, head width], rotated; valid up to ``length``."""
        self.values: NDArray[np.float32] = np.empty_like(self.keys)
        """As ``keys``, not rotated."""
        self.experts: NDArray[np.int32] = np.empty((capacity, layers, shape.num_experts_per_tok), np.int32)
        """[capacity, layers, top-k]: row i is the routing of token i as input."""
        self.stamps: NDArray[np.int32] = np.empty(capacity, np.int32)
        """[capacity]: which weights computed the position."""

    @property
    def capacity(self) -> int:
        """The number of positions that fit without growing."""
        return len(self.stamps)

    def reserve(self, length: int) -> None:
        """Make room for `length` positions, by doubling.

        Raises:
            ValueError: more positions than the model has.
        """
        if length > self.limit:
            raise ValueError(f"position {length - 1} is beyond the model's {self.limit} positions")
        if length <= self.capacity:
            return
        capacity = min(max(length, 2 * self.capacity), self.limit)
        self.keys = _grown(self.keys, 2, capacity, self.length)
        self.values = _grown(self.values, 2, capacity, self.length)
        self.experts = _grown(self.experts, 0, capacity, self.length)
        self.stamps = _grown(self.stamps, 0, capacity, self.length)

    def copy_prefix(self, source: "SequenceKV", length: int) -> None:
        """Begin with the first `length` positions of another buffer."""
        self.reserve(length)
        self.keys[:, :, :length] = source.keys[:, :, :length]
        self.values[:, :, :length] = source.values[:, :, :length]
        self.experts[:length] = source.experts[:length]
        self.stamps[:length] = source.stamps[:length]
        self.length = length


def _grown(array: NDArray[_Scalar], axis: int, capacity: int, length: int) -> NDArray[_Scalar]:
    size = list(array.shape)
    size[axis] = capacity
    bigger = np.empty(size, array.dtype)
    kept = (slice(None),) * axis + (slice(length),)
    bigger[kept] = array[kept]
    return bigger


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """The longest cached beginning of a prompt."""

    kv: SequenceKV
    """The buffer that holds it, not to be written to."""

    length: int
    """How many positions are equal; 0 means nothing is cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    ids: NDArray[np.int32]
    kv: SequenceKV


class PrefixCache:
    """Finished sequences, kept for prompts that begin as they do; the least recently used goes first.

    Salts separate: a prompt only meets sequences that were stored under its own.
    """

    def __init__(self, limit_tokens: int = PREFIX_CACHE_TOKENS) -> None:
        self._limit_tokens = limit_tokens
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return self._tokens

    def find(self, ids: NDArray[np.int32], salt: str) -> PrefixHit | None:
        """Find the stored sequence that shares the longest beginning with `ids`; None when none shares a token.

        At least one token of `ids` is left to compute, since its logits are wanted.
        """
        best: tuple[str, bytes] | None = None
        longest = 0
        for key, entry in self._entries.items():
            if key[0] == salt and (common := count_common_prefix(entry.ids, ids[:-1])) > longest:
                best, longest = key, common
        if best is None:
            return None
        self._entries.move_to_end(best)
        return PrefixHit(kv=self._entries[best].kv, length=longest)

    def store(self, ids: NDArray[np.int32], kv: SequenceKV, salt: str) -> None:
        """Keep a finished sequence, whose buffer becomes the cache's. What it extends is dropped in its favour."""
        ids = ids[: kv.length]
        if not len(ids):
            return
        for key, entry in list(self._entries.items()):
            if key[0] == salt and count_common_prefix(entry.ids, ids) == len(entry.ids):
                self._drop(key)
        self._entries[salt, ids.tobytes()] = _Entry(ids=ids, kv=kv)
        self._tokens += len(ids)
        while self._tokens > self._limit_tokens:
            self._drop(next(iter(self._entries)))

    def flush(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._tokens = 0

    def _drop(self, key: tuple[str, bytes]) -> None:
        self._tokens -= len(self._entries.pop(key).ids)
