"""Engine payloads to arrays and back.

Two forms exist: base64 of raw little-endian int32 (SGLang; no header, so the reader must know the sizes) and base64
of a ``.npy`` file (vLLM; uint8 or uint16). Knows bytes and sizes; whether the ids make sense is `check`'s question,
which rows a turn keeps is `patch`'s.
"""

import binascii
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pybase64
from numpy.typing import NDArray

from turnkeeper.errors import EngineProtocolError
from turnkeeper.routing.rows import RoutingRows
from turnkeeper.routing.shape import RoutingShape

Payload: TypeAlias = str | bytes | bytearray | memoryview
"""Base64 text, as a JSON string's content or as the bytes between its quotes."""

ENGINE_FLAG = "--enable-return-routed-experts"
_NPY_PREFIX = pybase64.b64encode_as_string(b"\x93NUMPY")
_ID_BYTES = 4
_BLOCK_BYTES = 1 << 20
"""Decoding a payload in one piece spends most of its time on fresh memory for the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongLength:
    """A payload whose size does not fit its rows."""

    detail: str
    """Expected and found."""
    hint: str
    """The likely cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPayload:
    """A payload of the right size, to be decoded block by block: one block fits the processor's cache."""

    payload: Payload
    shape: RoutingShape
    rows: int
    """How many rows it holds."""
    array: NDArray[Any] | None = None
    """All of them, where the form allows no decoding in parts."""

    def iter_blocks(self) -> Iterator[NDArray[Any]]:
        """The rows in order, shape [some, layers, topk], int32 (SGLang) or unsigned (vLLM).

        Raises:
            EngineProtocolError: not base64.
        """
        row_bytes = self.shape.row_ids * _ID_BYTES
        # Three bytes are four characters: blocks of a multiple of three rows begin at whole groups.
        step = max(1, _BLOCK_BYTES // row_bytes // 3) * 3
        if self.array is not None:
            for start in range(0, self.rows, step):
                yield self.array[start : start + step]
            return
        text = self.payload if isinstance(self.payload, str) else memoryview(self.payload)
        for start in range(0, self.rows, step):
            count = min(step, self.rows - start)
            begin, size = start * row_bytes // 3 * 4, -(-count * row_bytes // 3) * 4
            raw = _decode_base64(text[begin : begin + size])
            if len(raw) != count * row_bytes:
                raise EngineProtocolError("routed_experts must be standard base64, it is padded in the middle")
            ids: NDArray[np.int32] = np.frombuffer(raw, dtype="<i4")
            yield ids.reshape(count, self.shape.layers, self.shape.topk)


def open_payload(payload: Payload | None, *, shape: RoutingShape, start: int, stop: int) -> OpenPayload | WrongLength:
    """Check the size of the rows start..stop that a request was answered with.

    Args:
        payload: ``meta_info.routed_experts``; None when the reply lacks it.
        shape: what a row of the model looks like.
        start: first row asked for.
        stop: one past the last: prompt + completion tokens - 1.

    Returns:
        The rows, still to be decoded; or what is wrong with the size.

    Raises:
        EngineProtocolError: there is no payload, or it is not base64.
    """
    if payload is None:
        raise EngineProtocolError(
            f"routing rows {start}..{stop} were asked for, the reply has no routed_experts",
            hint=f"start the engine with {ENGINE_FLAG}; a router in between must pass return_routed_experts on",
            expected_rows=stop - start,
        )
    rows = stop - start
    if _is_npy(payload):
        array = _read_npy(_decode_base64(payload), shape, rows)
        if isinstance(array, WrongLength):
            return array
        return OpenPayload(payload=payload, shape=shape, rows=rows, array=array)
    if _count_bytes(payload) != rows * shape.row_ids * _ID_BYTES:
        return _explain_length(len(_decode_base64(payload)), shape, start, stop)
    return OpenPayload(payload=payload, shape=shape, rows=rows)


def encode_rows(rows: RoutingRows) -> str:
    """Spell rows as SGLang does: base64 of C-order little-endian int32; the empty string for no rows."""
    return pybase64.b64encode_as_string(rows.experts_RLK.astype("<i4").tobytes())


def decode_indexer(payload: Payload, *, layers: int, rows: int) -> NDArray[np.int32]:
    """Read ``meta_info.indexer_topk``, which is whole in every pause mode.

    Args:
        payload: base64 of raw little-endian int32.
        layers: ``meta_info.indexer_topk_num_layers``.
        rows: prompt + completion tokens - 1.

    Returns:
        Shape [rows, layers, topk], read-only; topk follows from the size.

    Raises:
        EngineProtocolError: not base64, or the size does not divide into the rows.
    """
    raw = _decode_base64(payload, field="indexer_topk")
    unit = rows * layers * _ID_BYTES
    if layers < 1 or (len(raw) % unit if unit else len(raw)):
        raise EngineProtocolError(
            f"indexer_topk has {len(raw)} bytes, which do not divide into {rows} rows of {layers} layers",
            hint="indexer_topk covers the whole prompt and completion less the last token",
            expected_rows=rows,
        )
    ids: NDArray[np.int32] = np.frombuffer(raw, dtype="<i4")
    return ids.reshape(rows, layers, len(raw) // unit if unit else 0)


def _decode_base64(payload: Payload, field: str = "routed_experts") -> bytes:
    try:
        return pybase64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EngineProtocolError(
            f"{field} must be standard base64, got {_excerpt(payload)}: {error}",
            hint="something between the engine and this server changes replies",
        ) from error


def _count_bytes(payload: Payload) -> int | None:
    """The decoded size by length and padding alone; None where base64 has no such length."""
    groups, rest = divmod(len(payload), 4)
    return None if rest else groups * 3 - _spell(payload[-2:]).count("=")


def _spell(part: Payload) -> str:
    return part if isinstance(part, str) else bytes(part).decode("latin-1")


def _excerpt(payload: Payload) -> str:
    return f"{_spell(payload[:24])!r}... ({len(payload)} characters)"


def _is_npy(payload: Payload) -> bool:
    return _spell(payload[: len(_NPY_PREFIX)]) == _NPY_PREFIX


def _read_npy(raw: bytes, shape: RoutingShape, rows: int) -> NDArray[Any] | WrongLength:
    try:
        ids: NDArray[Any] = np.lib.format.read_array(io.BytesIO(raw), allow_pickle=False)
    except ValueError as error:
        raise EngineProtocolError(f"routed_experts is a broken .npy file: {error}") from error
    if ids.dtype.kind not in "iu":
        raise EngineProtocolError(f"routed_experts must hold whole numbers, the .npy file holds {ids.dtype}")
    expected = (rows, shape.layers, shape.topk)
    if ids.shape != expected:
        return WrongLength(
            detail=f"expected [rows, layers, topk] = {expected}, found {ids.shape}",
            hint="the rows asked for and the rows sent differ, or --num-layers and --moe-router-topk do not fit",
        )
    return np.ascontiguousarray(ids)


def _explain_length(size: int, shape: RoutingShape, start: int, stop: int) -> WrongLength:
    """Name the likely cause of a size: another start, other sizes of the model, or a cut."""
    rows, row_bytes = stop - start, shape.row_ids * _ID_BYTES
    found, rest = divmod(size, row_bytes)
    detail = (
        f"expected {rows} rows ({start}..{stop}) of {shape.layers} layers x top-{shape.topk} int32 = "
        f"{rows * row_bytes} bytes, found {size} bytes = "
        + (f"{found} rows" if not rest else f"{found} rows and {rest} bytes")
    )
    return WrongLength(detail=detail, hint=_guess_cause(size, shape, start, stop))


def _guess_cause(size: int, shape: RoutingShape, start: int, stop: int) -> str:
    rows, row_bytes = stop - start, shape.row_ids * _ID_BYTES
    if start and size == stop * row_bytes:
        return "the payload is whole: the engine or a router ignored routed_experts_start_len"
    if size == 0:
        return f"nothing was captured: start the engine with {ENGINE_FLAG}"
    per_row, rest = divmod(size, rows * _ID_BYTES) if rows else (0, 1)
    if not rest and per_row % shape.layers == 0:
        return f"the size fits top-{per_row // shape.layers}: check --moe-router-topk"
    if not rest and per_row % shape.topk == 0:
        return f"the size fits {per_row // shape.topk} layers: check --num-layers"
    return "the engine lost rows, a router cut the reply, or prefill and decode rows were not merged"
