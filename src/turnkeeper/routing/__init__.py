"""Routing rows (rollout routing replay, R3): what experts each token was routed to."""

from turnkeeper.routing.rows import RoutingRows

__all__ = ["RoutingRows"]
