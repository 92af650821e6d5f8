"""Event streams of engines.

1. The data of each line comes out once, whole, however the network cut it; a large payload is cut out of its line.
2. Comments, blank lines and other fields are left out; a last line needs no newline.
"""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeeper.engines.net.sse import DataLines

STREAM = b': ping\n\nevent: x\ndata: {"a": 1}\n\ndata:{"b": 2}\r\n\r\nid: 7\ndata: [DONE]'
EXPECTED = [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


def read(chunks: list[bytes]) -> list[bytes]:
    lines = DataLines()
    found = [data for chunk in chunks for data in lines.feed(chunk)]
    return [bytes(data.text) for data in found + lines.finish()]


@settings(max_examples=50)
@given(cuts=st.sets(st.integers(0, len(STREAM)), max_size=12))
def test_the_data_comes_out_whole_however_it_was_cut(cuts: set[int]) -> None:
    bounds = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[start:stop] for start, stop in pairwise(bounds)]) == EXPECTED


@pytest.mark.parametrize("chunks", [[], [b""], [b"\n\n"], [b": only a comment\n"], [b"data:\n"]])
def test_a_stream_without_data_gives_nothing(chunks: list[bytes]) -> None:
    assert read(chunks) == []


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_payload_is_cut_out_of_its_line(size: int) -> None:
    text = "AQAAAAIAAAADAAAA" * 100
    stream = f'data: {{"routed_experts": "{text}", "a": 1}}\ndata: [DONE]\n'.encode()
    lines = DataLines()
    first, last = [data for start in range(0, len(stream), size) for data in lines.feed(stream[start : start + size])]
    assert bytes(first.text) == b'{"routed_experts": 0, "a": 1}'
    assert [part.tolist() for part in first.payloads[0].iter_units(300)] == [[1, 2, 3] * 100]
    assert bytes(last.text) == b"[DONE]"
