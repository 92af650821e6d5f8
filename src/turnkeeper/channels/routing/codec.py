"""Engine payloads to arrays and back.

Two forms exist: base64 of raw little-endian int32 (SGLang; no header, so the reader must know the sizes) and base64
of a ``.npy`` file (vLLM; uint8 or uint16). Knows bytes and sizes; whether the ids make sense is `check`'s question,
which rows a turn keeps is `patch`'s.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pybase64
from numpy.typing import NDArray

from turnkeeper.channels.packed import PackedIds, Payload, pack_payload
from turnkeeper.channels.routing.rows import RoutingRows
from turnkeeper.channels.routing.shape import RoutingShape
from turnkeeper.errors import EngineProtocolError

ENGINE_FLAG = "--enable-return-routed-experts"
_ID_BYTES = 4
_BLOCK_IDS = 1 << 18
"""About the number of ids that are compared at a time: they stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongLength:
    """A payload whose size does not fit its rows."""

    detail: str
    """Expected and found."""
    hint: str
    """The likely cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPayload:
    """A payload of the right size."""

    ids: PackedIds
    shape: RoutingShape
    rows: int
    """The number of rows of the payload."""
    array: NDArray[Any] | None = None
    """All rows, where the payload is a file with a shape of its own."""

    def iter_blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the rows in order, shape [some, layers, topk]; whole numbers of any dtype."""
        unit = self.shape.row_ids
        if self.array is None:
            for ids in self.ids.iter_units(unit):
                yield ids.reshape(-1, self.shape.layers, self.shape.topk)
            return
        step = max(1, _BLOCK_IDS // unit)
        for start in range(0, self.rows, step):
            yield self.array[start : start + step]


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
    rows, ids = stop - start, pack_payload(payload, "routed_experts")
    if ids.npy is not None:
        array = _read_npy(ids.npy, shape, rows)
        if isinstance(array, WrongLength):
            return array
        return OpenPayload(ids=ids, shape=shape, rows=rows, array=array)
    if ids.size_bytes != rows * shape.row_ids * _ID_BYTES:
        return _explain_length(ids.size_bytes, shape, start, stop)
    return OpenPayload(ids=ids, shape=shape, rows=rows)


def encode_rows(rows: RoutingRows) -> str:
    """Spell rows as SGLang does: base64 of C-order little-endian int32; the empty string for no rows."""
    return pybase64.b64encode_as_string(rows.experts_RLK.astype("<i4").tobytes())


def _read_npy(raw: bytearray, shape: RoutingShape, rows: int) -> NDArray[Any] | WrongLength:
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
