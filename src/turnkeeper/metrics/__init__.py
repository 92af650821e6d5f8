"""The metrics of a server, for Prometheus."""

from turnkeeper.metrics.catalog import METRICS
from turnkeeper.metrics.metrics import Metrics, name_engine
from turnkeeper.metrics.row import MetricKind, MetricRow

__all__ = ["METRICS", "MetricKind", "MetricRow", "Metrics", "name_engine"]
