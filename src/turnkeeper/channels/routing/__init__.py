"""Routing rows (rollout routing replay, R3): what experts each token was routed to."""

from turnkeeper.channels.routing.channel import RoutedExperts, RowsCapture
from turnkeeper.channels.routing.check import BadRow, RowFault
from turnkeeper.channels.routing.codec import encode_rows
from turnkeeper.channels.routing.patch import Patch, assemble_rows, join_patches, take_patch
from turnkeeper.channels.routing.request import RowsRequest, plan_rows
from turnkeeper.channels.routing.rows import RoutingRows
from turnkeeper.channels.routing.shape import RoutingShape, read_routing_shape

__all__ = [
    "BadRow",
    "Patch",
    "RoutedExperts",
    "RoutingRows",
    "RoutingShape",
    "RowFault",
    "RowsCapture",
    "RowsRequest",
    "assemble_rows",
    "encode_rows",
    "join_patches",
    "plan_rows",
    "read_routing_shape",
    "take_patch",
]
