"""The KV buffers' prefix cache.

1. A hit is the longest stored beginning, never the whole prompt, and carries experts and stamps as stored.
2. Salts separate.
3. A sequence replaces those it extends; the least recently used go when the limit is passed; a flush empties it.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from turnkeeper.tiny.model import PrefixCache, SequenceKV, TinyShape

SHAPE = TinyShape(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, max_position_embeddings=64)


def _ids(tokens: list[int]) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def _kv(length: int, stamp: int = 1) -> SequenceKV:
    kv = SequenceKV(SHAPE)
    kv.keys.fill(stamp)
    kv.values.fill(-stamp)
    kv.experts[:length] = np.arange(length)[:, None, None]
    kv.stamps[:length] = stamp
    kv.length = length
    return kv


token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(stored=st.lists(token_lists, max_size=5), prompt=token_lists)
def test_a_hit_is_the_longest_stored_beginning(stored: list[list[int]], prompt: list[int]) -> None:
    cache = PrefixCache()
    for ids in stored:
        cache.store(_ids(ids), _kv(len(ids)), "")
    longest = max(
        (n for ids in stored for n in range(1, len(prompt)) if ids[:n] == prompt[:n]),
        default=0,
    )
    hit = cache.find(_ids(prompt), "")
    assert (hit.length if hit else 0) == longest


def test_a_hit_carries_what_was_computed() -> None:
    cache = PrefixCache()
    cache.store(_ids([1, 2, 3]), _kv(3, stamp=4), "")
    hit = cache.find(_ids([1, 2, 9]), "")
    assert hit is not None
    kv = SequenceKV(SHAPE)
    kv.copy_prefix(hit.kv, hit.length)
    assert kv.length == 2
    assert kv.stamps[:2].tolist() == [4, 4]
    assert kv.experts[:2, 0, 0].tolist() == [0, 1]
    assert (kv.keys[:, :, :2] == 4).all()
    assert (kv.values[:, :, :2] == -4).all()


@pytest.mark.parametrize(("stored", "asked"), [("a", "b"), ("", "b"), ("a", "")])
def test_salts_separate(stored: str, asked: str) -> None:
    cache = PrefixCache()
    cache.store(_ids([1, 2]), _kv(2), stored)
    assert cache.find(_ids([1, 2, 3]), asked) is None
    assert cache.find(_ids([1, 2, 3]), stored) is not None


def test_only_computed_positions_are_stored() -> None:
    cache = PrefixCache()
    cache.store(_ids([1, 2, 3]), _kv(2), "")
    hit = cache.find(_ids([1, 2, 3, 4]), "")
    assert hit is not None
    assert hit.length == 2


def test_an_extension_replaces_what_it_extends() -> None:
    cache = PrefixCache()
    cache.store(_ids([1, 2]), _kv(2), "")
    cache.store(_ids([1, 2, 3]), _kv(3), "")
    assert len(cache) == 3


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(limit_tokens=4)
    cache.store(_ids([1, 1]), _kv(2), "")
    cache.store(_ids([2, 2]), _kv(2), "")
    cache.find(_ids([1, 1, 1]), "")
    cache.store(_ids([3, 3]), _kv(2), "")
    assert cache.find(_ids([2, 2, 2]), "") is None
    assert cache.find(_ids([1, 1, 1]), "") is not None
    assert len(cache) == 4


def test_a_flush_empties_it() -> None:
    cache = PrefixCache()
    cache.store(_ids([1, 2]), _kv(2), "")
    cache.flush()
    assert len(cache) == 0
    assert cache.find(_ids([1, 2, 3]), "") is None
