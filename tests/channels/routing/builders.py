"""Rows and payloads for the tests of routing: small, valid and predictable."""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.channels.routing import RoutingRows, RoutingShape

SHAPE = RoutingShape(layers=3, topk=2, experts=8)


def build_ids(rows: int, *, shape: RoutingShape = SHAPE, seed: int = 0) -> NDArray[np.int32]:
    """Rows as an engine would send them: distinct ids in every row of a layer, no layer all zero."""
    base = np.arange(rows * shape.layers).reshape(rows, shape.layers, 1) + seed + 1
    return ((base + np.arange(shape.topk)) % shape.experts).astype(np.int32)


def encode_ids(ids: NDArray[Any]) -> str:
    """SGLang's form, by the standard library alone."""
    return base64.b64encode(np.ascontiguousarray(ids, dtype="<i4").tobytes()).decode()


def encode_npy(ids: NDArray[Any]) -> str:
    """vLLM's form."""
    file = io.BytesIO()
    np.save(file, ids)
    return base64.b64encode(file.getvalue()).decode()


def build_rows(ids: NDArray[Any]) -> RoutingRows:
    """The stored form."""
    return RoutingRows(experts_RLK=ids.astype(np.uint8))
