"""A row of the table of metrics: its kind, its unit, its labels and buckets, and the words that describe it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """The kinds of metrics."""

    COUNTER = "counter"
    """A number that only grows."""
    GAUGE = "gauge"
    """A number that may fall, read when metrics are scraped."""
    HISTOGRAM = "histogram"
    """Observations, counted in buckets."""


class Unit(StrEnum):
    """What a metric counts or measures."""

    COUNT = "count"
    STATE = "0 or 1"
    SECONDS = "seconds"
    BYTES = "bytes"
    TOKENS = "tokens"
    ROWS = "rows"
    VERSION = "version"
    OPTION = "as the option"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLabel:
    """One label, with all values that it can have."""

    name: str
    values: tuple[str, ...] = ()
    """The values, from the code; empty where the configuration gives them."""
    source: str = ""
    """Where the configuration says the values; empty where they are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """One metric. Its name has its unit; counters are written with ``_total`` behind their name."""

    name: str
    kind: MetricKind
    unit: Unit
    help: str
    """What is counted or measured, in one sentence; it stands in the exposition."""
    tells: str = ""
    """What an operator learns from it, for the reference page."""
    labels: tuple[MetricLabel, ...] = ()
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, without the last one, which is infinite."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in the exposition."""
        match self.kind:
            case MetricKind.COUNTER:
                return (f"{self.name}_total",)
            case MetricKind.GAUGE:
                return (self.name,)
            case MetricKind.HISTOGRAM:
                return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")


def label(name: str, values: Iterable[str] = (), *, source: str = "") -> MetricLabel:
    """Describe a label by its values, or by where the configuration says them."""
    return MetricLabel(name=name, values=tuple(map(str, values)), source=source)


def counter(name: str, text: str, *labels: MetricLabel, unit: Unit = Unit.COUNT, tells: str = "") -> MetricRow:
    """Describe a counter by its name, its help and its labels."""
    return MetricRow(name=name, kind=MetricKind.COUNTER, unit=unit, help=text, tells=tells, labels=labels)


def gauge(name: str, text: str, *labels: MetricLabel, unit: Unit = Unit.COUNT, tells: str = "") -> MetricRow:
    """Describe a gauge by its name, its help and its labels."""
    return MetricRow(name=name, kind=MetricKind.GAUGE, unit=unit, help=text, tells=tells, labels=labels)


def histogram(
    name: str,
    text: str,
    buckets: tuple[float, ...],
    *labels: MetricLabel,
    unit: Unit = Unit.SECONDS,
    tells: str = "",
) -> MetricRow:
    """Describe a histogram by its name, its help, its buckets and its labels."""
    return MetricRow(
        name=name, kind=MetricKind.HISTOGRAM, unit=unit, help=text, tells=tells, labels=labels, buckets=buckets
    )
