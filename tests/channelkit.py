"""Side channels for tests: what turns ask for and keep of routing rows and indexer choices, by short names."""

from typing import Any

import numpy as np

from turnkeeper.channels import CHANNELS, Asked, Capture, ItemRun, Items
from turnkeeper.channels.indexer import IndexerCapture, IndexerPayload, WholePath
from turnkeeper.channels.masks import MaskCapture
from turnkeeper.channels.routing import RoutingRows, RoutingShape, RowsCapture, RowsRequest
from turnkeeper.choices import OnRecomputed, PauseMode
from turnkeeper.core import Completion
from turnkeeper.fleet.route_check import RouteRequirements

ROWS, INDEXER = "routed_experts", "indexer_topk"


def channels_of(rows: RoutingRows | None = None, indexer_rows: np.ndarray | None = None) -> dict[str, Items]:
    """What a completion keeps."""
    found: dict[str, Items] = {} if rows is None else {ROWS: rows}
    return found if indexer_rows is None else found | {INDEXER: ItemRun(indexer_rows)}


def take_channels(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a completion, with ``rows`` and ``indexer_rows`` put where they belong."""
    given = {name: fields.pop(name) for name in ("rows", "indexer_rows") if name in fields}
    return fields | ({"channels": {**fields.get("channels", {}), **channels_of(**given)}} if given else {})


def rows_of_turn(completion: Completion) -> Any:
    """The rows that a completion keeps; None without."""
    return completion.channels.get(ROWS)


def indexer_of_turn(completion: Completion) -> Any:
    """The indexer's rows that a completion keeps, as an array; None without."""
    found = completion.channels.get(INDEXER)
    return None if found is None else found.runs[0].array


def take_asked(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request, with ``rows`` and ``wants_indexer`` put where they belong."""
    rows: RowsRequest | None = fields.pop("rows", None)
    asked: dict[str, Asked] = dict(fields.pop("asked", {}))
    if rows is not None:
        asked[ROWS] = rows
    if fields.pop("wants_indexer", False):
        asked[INDEXER] = WholePath()
    return fields | {"asked": asked}


def take_payloads(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a generation, with ``routed_experts`` and ``indexer_topk`` put where they belong."""
    payloads = dict(fields.pop("payloads", {}))
    if "routed_experts" in fields:
        payloads[ROWS] = fields.pop("routed_experts")
    payloads[INDEXER] = IndexerPayload(rows=fields.pop("indexer_topk", None), layers=fields.pop("indexer_layers", None))
    return fields | {"payloads": payloads}


def capture_rows(shape: RoutingShape, *, mode: PauseMode = PauseMode.IN_PLACE, **options: Any) -> RowsCapture:
    """Ask for rows as a server of this pause mode does."""
    return RowsCapture(CHANNELS[ROWS], shape, use_increments=mode is not PauseMode.RETRACT, **options)


def capture_indexer() -> IndexerCapture:
    """Ask for the indexer's choices."""
    return IndexerCapture(CHANNELS[INDEXER])


def take_captures(fields: dict[str, Any]) -> dict[str, Any]:
    """The options of a runner, with ``shape`` and what belongs to rows made a capture; the indexer is always one."""
    shape = fields.pop("shape", None)
    names = {"on_bad_rows": "on_bad_rows", "rows_kept": "kept", "on_recomputed": "on_recomputed"}
    options = {names[name]: fields.pop(name) for name in names if name in fields}
    mode = fields.get("pause_mode", PauseMode.IN_PLACE)
    captures: tuple[Capture, ...] = () if shape is None else (capture_rows(shape, mode=mode, **options),)
    return fields | {"captures": (*captures, capture_indexer(), *fields.pop("captures", ()))}


def take_tensors(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a sample, with the tensors of side channels put where they belong; None stands for none."""
    names = [tensor.name for tensor in CHANNELS.tensors if tensor.name in fields]
    given = {name: fields.pop(name) for name in names}
    tensors = fields.pop("tensors", {}) | {name: array for name, array in given.items() if array is not None}
    return fields | {"tensors": tensors}


def masked_by(on_recomputed: OnRecomputed) -> frozenset[str]:
    """The marks that are masked under this choice about rows that were computed again."""
    return frozenset(CHANNELS[ROWS].list_masked_marks({"r3_recomputed": on_recomputed}))


def require(prompt_ids: Any, **fields: Any) -> RouteRequirements:
    """What a route needs, with ``shape``, ``use_addition_r3``, ``wants_indexer`` and ``wants_masks`` made captures."""
    shape, addition = fields.pop("shape", None), fields.pop("use_addition_r3", True)
    captures: list[Capture] = []
    if shape is not None:
        captures.append(RowsCapture(CHANNELS[ROWS], shape, use_increments=addition))
    if fields.pop("wants_indexer", False):
        captures.append(capture_indexer())
    if fields.pop("wants_masks", False):
        captures.append(MaskCapture(CHANNELS["sampling_mask"]))
    return RouteRequirements(prompt_ids=prompt_ids, captures=tuple(captures), **fields)
