"""Payload text to ids while it comes in.

1. However the text is cut, the ids are those of the whole text, each block in the smallest dtype that holds it.
2. What is no base64 is noted with its beginning, and nothing behind it is read.
3. Of a chunk in which the text ends no more is taken than the text, and what is fed then completes it.
4. The text of a ``.npy`` file is kept as its bytes.
"""

import base64
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.routing.builders import encode_npy
from turnkeeper.channels import PackedIds
from turnkeeper.channels.packed import SEGMENT_IDS

EDGES = [0, 1, 255, 256, 65_535, 65_536, 2**31 - 1, -1, -(2**31)]


def spell(ids: list[int]) -> bytes:
    return base64.b64encode(np.asarray(ids, dtype="<i4").tobytes())


def feed(text: bytes, cuts: list[int]) -> PackedIds:
    packed = PackedIds()
    for start, stop in pairwise([0, *cuts, len(text)]):
        packed.feed(text[start:stop])
    packed.finish()
    return packed


@settings(max_examples=100, deadline=None)
@given(
    ids=st.lists(st.sampled_from(EDGES) | st.integers(0, 300), max_size=60),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    unit=st.integers(1, 7),
)
def test_the_ids_are_those_of_the_whole_text(ids: list[int], cuts: list[int], unit: int) -> None:
    text = spell(ids)
    packed = feed(text, sorted(min(cut, len(text)) for cut in cuts))
    assert not packed.error
    assert (len(packed), packed.size_bytes) == (len(text), 4 * len(ids))
    runs = list(packed.iter_units(unit))
    assert all(len(run) and len(run) % unit == 0 for run in runs)
    assert [number for run in runs for number in run.tolist()] == ids[: len(ids) // unit * unit]


@pytest.mark.parametrize(
    ("top", "dtype"), [(255, np.uint8), (256, np.uint16), (65_535, np.uint16), (65_536, np.int32), (-1, np.int32)]
)
def test_a_block_takes_the_smallest_dtype_that_holds_it(top: int, dtype: type) -> None:
    (block,) = PackedIds.pack(spell([0, top, 7])).iter_units(1)
    assert block.dtype == dtype


@pytest.mark.parametrize("unit", [1, 7, 384])
def test_a_long_text_is_held_in_its_small_dtype_in_few_pieces(unit: int) -> None:
    """A quarter of the bytes; only the block with the odd id is held in all of them."""
    ids = np.tile(np.arange(200, dtype="<i4"), 2 * SEGMENT_IDS // 200 + 500)
    ids[-5000] = -1
    runs = list(PackedIds.pack(base64.b64encode(ids.tobytes())).iter_units(unit))
    assert sum(len(run) for run in runs if run.dtype == np.uint8) > 2 * SEGMENT_IDS
    assert {run.dtype for run in runs} == {np.dtype(np.uint8), np.dtype(np.int32)}
    assert len(runs) <= 8, "three pieces, one with the odd id, the text's last group, and the units that lie across"
    assert np.array_equal(np.concatenate(runs), ids[: len(ids) // unit * unit])


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(0, 300), min_size=1, max_size=60),
    behind=st.sampled_from([b'"', b'", "a": 1}', b'"AAAA"', b"\\/AAAA", b'"}' + b"A" * 90]),
    cuts=st.lists(st.integers(0, 500), max_size=6),
)
def test_no_more_is_taken_than_the_text(ids: list[int], behind: bytes, cuts: list[int]) -> None:
    text = spell(ids)
    whole, packed, taken = text + behind, PackedIds(), 0
    for stop in [*sorted(min(cut, len(whole)) for cut in cuts), len(whole)]:
        if taken < stop:
            taken += packed.feed_valid(whole[taken:stop])
    assert taken <= len(text)
    packed.feed(text[taken:])
    packed.finish()
    assert not packed.error
    assert len(packed) == len(text)
    assert [number for run in packed.iter_units(1) for number in run.tolist()] == ids


def test_nothing_is_taken_behind_an_error() -> None:
    packed = PackedIds()
    packed.feed(b"!" * 16)
    assert packed.feed_valid(b"A" * 32) == 0


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([b"AAAA!AAAAAAAAAAA"], ""),
        ([b"AAAA!AAAAAAAAAAA", b"A" * 16], ""),
        ([b"AAA"], ""),
        ([b"A" * 14 + b"==", b"A" * 16], "padded in the middle"),
        ([b"A" * 14 + b"==", b"AAAA"], "padded in the middle"),
        ([b"AA==AAAAAAAAAAAA"], ""),
        ([b"-_-_" * 4], ""),
    ],
    ids=["mark", "mark-then-more", "cut-short", "pad-then-block", "pad-then-rest", "padding-inside", "url-safe"],
)
def test_what_is_no_base64_is_noted(parts: list[bytes], error: str) -> None:
    packed = PackedIds()
    for part in parts:
        packed.feed(part)
    packed.finish()
    assert packed.error
    assert error in packed.error
    assert parts[0][:8].decode() in packed.excerpt
    assert str(len(b"".join(parts))) in packed.excerpt
    assert packed.size_bytes <= len(parts[0]) * 3 // 4


@pytest.mark.parametrize("size", [1, 5, 16, 1000])
def test_the_text_of_a_file_is_kept_as_its_bytes(size: int) -> None:
    text = encode_npy(np.zeros((4, 3, 2), np.uint8)).encode()
    packed = feed(text, list(range(size, len(text), size)))
    assert bytes(packed.npy or b"") == base64.b64decode(text)
    assert packed.size_bytes == len(base64.b64decode(text))
