"""The metrics of a server, for Prometheus."""

from turnkeeper.metrics.catalog import METRICS, MetricKind, MetricRow
from turnkeeper.metrics.metrics import Metrics, name_engine

__all__ = ["METRICS", "MetricKind", "MetricRow", "Metrics", "name_engine"]
