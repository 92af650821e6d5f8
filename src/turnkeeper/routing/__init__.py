"""Routing rows (rollout routing replay, R3): what experts each token was routed to."""

from turnkeeper.routing.check import BadRow, RowFault
from turnkeeper.routing.codec import Payload, decode_indexer, encode_rows
from turnkeeper.routing.indexer import keep_added, list_pieces
from turnkeeper.routing.packed import PackedIds
from turnkeeper.routing.patch import Patch, assemble_rows, join_patches, take_patch
from turnkeeper.routing.request import RowsRequest, plan_rows
from turnkeeper.routing.rows import ReadRows, RoutingRows
from turnkeeper.routing.shape import RoutingShape, read_routing_shape

__all__ = [
    "BadRow",
    "PackedIds",
    "Patch",
    "Payload",
    "ReadRows",
    "RoutingRows",
    "RoutingShape",
    "RowFault",
    "RowsRequest",
    "assemble_rows",
    "decode_indexer",
    "encode_rows",
    "join_patches",
    "keep_added",
    "list_pieces",
    "plan_rows",
    "read_routing_shape",
    "take_patch",
]
