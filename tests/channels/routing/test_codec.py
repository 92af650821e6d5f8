"""Engine payloads to arrays and back.

1. Both forms decode: raw int32 and .npy, as text or bytes; encoding is the engine's own spelling.
2. A missing payload, one that is not base64 or a broken .npy is a protocol error that names the likely cause.
3. A wrong size says rows expected and found, and what it looks like.
4. Indexer payloads are whole; their top-k follows from the size.
"""

import base64
import io
from collections.abc import Callable

import numpy as np
import pytest

from channels.routing.builders import SHAPE, build_ids, build_rows, encode_ids, encode_npy
from turnkeeper.channels import Payload
from turnkeeper.channels.indexer import decode_indexer
from turnkeeper.channels.routing import encode_rows
from turnkeeper.channels.routing.codec import WrongLength, open_payload
from turnkeeper.errors import EngineProtocolError

IDS = build_ids(4)


def _decode(payload: Payload | None, *, start: int = 0, stop: int = 4) -> np.ndarray:
    opened = open_payload(payload, shape=SHAPE, start=start, stop=stop)
    assert not isinstance(opened, WrongLength)
    return np.concatenate([np.empty((0, 3, 2), np.int32), *opened.iter_blocks()])


@pytest.mark.parametrize(
    "payload",
    [encode_ids(IDS), encode_ids(IDS).encode(), memoryview(encode_ids(IDS).encode()), encode_npy(IDS.astype(np.uint8))],
    ids=["text", "bytes", "a-view", "npy"],
)
def test_every_form_gives_the_same_rows(payload: str | bytes | memoryview) -> None:
    assert _decode(payload, start=10, stop=14).tolist() == IDS.tolist()


@pytest.mark.parametrize("rows", [1, 2, 3, 43_690, 43_691, 400_001])
@pytest.mark.parametrize("encode", [encode_ids, lambda ids: encode_npy(ids.astype(np.uint8))], ids=["int32", "npy"])
def test_long_payloads_come_in_blocks_of_whole_rows(rows: int, encode: Callable[[np.ndarray], str]) -> None:
    ids = build_ids(rows)
    opened = open_payload(encode(ids), shape=SHAPE, start=0, stop=rows)
    assert not isinstance(opened, WrongLength)
    blocks = list(opened.iter_blocks())
    assert max(map(len, blocks)) < 200_000
    assert np.array_equal(np.concatenate(blocks), ids)


def test_encoding_is_the_engines_spelling() -> None:
    assert encode_rows(build_rows(IDS)) == encode_ids(IDS)
    assert encode_rows(build_rows(build_ids(0))) == ""


def test_no_rows_are_an_empty_payload() -> None:
    assert _decode("", start=9, stop=9).shape == (0, 3, 2)


def test_a_missing_payload_names_the_engine_flag() -> None:
    with pytest.raises(EngineProtocolError, match=r"rows 0\.\.4 were asked for") as caught:
        _decode(None)
    assert "--enable-return-routed-experts" in caught.value.hint
    assert "router" in caught.value.hint


@pytest.mark.parametrize(
    "payload", ["not base64!", b"\xff\xfe", "abc", "aé"], ids=["marks", "bytes", "cut-short", "not-ascii"]
)
def test_a_payload_that_is_not_base64_is_quoted(payload: str | bytes) -> None:
    with pytest.raises(EngineProtocolError, match="must be standard base64"):
        _decode(payload)


def _flat_npy(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (base64.b64encode(b"\x93NUMPY\x01").decode(), "broken .npy"),
        (_flat_npy(np.zeros((4, 3, 2))), "whole numbers"),
    ],
    ids=["cut-header", "floats"],
)
def test_a_broken_npy_file_is_a_protocol_error(payload: str, message: str) -> None:
    with pytest.raises(EngineProtocolError, match=message):
        _decode(payload)


@pytest.mark.parametrize(
    ("payload", "start", "stop", "found", "hint"),
    [
        (encode_ids(build_ids(3)), 0, 4, "= 3 rows", "lost rows"),
        (encode_ids(build_ids(9)), 5, 9, "= 9 rows", "ignored routed_experts_start_len"),
        ("", 0, 4, "0 bytes", "--enable-return-routed-experts"),
        (encode_ids(build_ids(1)), 4, 4, "= 1 rows", "lost rows"),
        (encode_ids(np.zeros((4, 3, 3))), 0, 4, "6 rows", "top-3: check --moe-router-topk"),
        (encode_ids(np.zeros((4, 7, 2))), 0, 4, "9 rows and 8 bytes", "7 layers: check --num-layers"),
        (base64.b64encode(b"12345").decode(), 0, 4, "0 rows and 5 bytes", "a router cut the reply"),
        (encode_npy(np.zeros((4, 3, 5), np.uint8)), 0, 4, "found (4, 3, 5)", "--moe-router-topk"),
    ],
    ids=["one-short", "whole-payload", "empty", "rows-nobody-asked-for", "other-topk", "other-layers", "odd", "npy"],
)
def test_a_wrong_size_says_what_it_looks_like(payload: str, start: int, stop: int, found: str, hint: str) -> None:
    wrong = open_payload(payload, shape=SHAPE, start=start, stop=stop)
    assert isinstance(wrong, WrongLength)
    assert hint in wrong.hint
    assert found in wrong.detail


def test_indexer_rows_take_their_width_from_the_size() -> None:
    ids = np.arange(5 * 2 * 4, dtype=np.int32).reshape(5, 2, 4) - 1
    assert decode_indexer(encode_ids(ids), layers=2, rows=5).tolist() == ids.tolist()
    assert decode_indexer("", layers=2, rows=0).shape == (0, 2, 0)


@pytest.mark.parametrize(
    ("payload", "layers", "rows"),
    [("AAAAAAAA", 1, 3), ("AAAAAAAA", 0, 2), ("AAAAAAAA", 1, 0)],
    ids=["no-multiple", "no-layers", "no-rows"],
)
def test_an_indexer_payload_of_another_size_is_refused(payload: str, layers: int, rows: int) -> None:
    with pytest.raises(EngineProtocolError, match="do not divide"):
        decode_indexer(payload, layers=layers, rows=rows)
