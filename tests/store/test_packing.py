"""Values as bytes.

1. Every JSON value and every array comes back as it was, to the last bit and type, and packs to the same bytes again.
2. Doubles that are exact in 32 bits take four bytes each.
3. What is neither is refused.
"""

import struct
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storekit import JSON, spell
from turnkeeper.store.packing import pack, unpack

ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64, np.bool_]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
NAN_WITH_PAYLOAD = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]


@given(value=JSON)
@example(value=NAN_WITH_PAYLOAD)
@example(value={"\ud83d": {"\udc00": ["\ud83d", (2**80, -0.0)]}})
def test_a_value_comes_back_as_it_was(value: object) -> None:
    packed = pack(value)
    assert spell(unpack(packed)) == spell(value)
    assert pack(unpack(packed)) == packed


@given(array=ARRAYS)
@example(array=np.array([0.5, NAN_WITH_PAYLOAD]))
@example(array=np.array([0.1, 1e300, -0.0]))
def test_an_array_comes_back_as_it_was(array: np.ndarray) -> None:
    packed = pack({"x": [array]})
    found = unpack(packed)["x"][0]
    assert spell(found) == spell(array)
    assert not found.flags.writeable
    assert pack({"x": [found]}) == packed


def test_an_array_of_another_order_comes_back_with_its_values() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert unpack(pack(array)).tolist() == array.tolist()


def test_doubles_that_are_exact_in_32_bits_take_four_bytes_each() -> None:
    singles = np.linspace(-9, 0, 1000).astype(np.float32).astype(np.float64)
    assert len(pack(singles)) < 4100
    assert len(pack(np.linspace(-9, 0, 1000))) > 8000


def test_numbers_of_numpy_and_read_only_objects_become_plain_ones() -> None:
    assert unpack(pack([np.int64(3), np.float32(0.5), MappingProxyType({"a": 1})])) == [3, 0.5, {"a": 1}]


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array(["text"]), 1j], ids=["set", "object", "texts", "complex"])
def test_what_is_neither_json_nor_an_array_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        pack([value])


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", pack([1, 2])[:-1], b"\xc7\x00\x63"], ids=["none", "no value", "cut", "x"]
)
def test_bytes_that_are_no_packed_value_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(data)
