"""The stream of reports: each report goes to every reader, once and in order."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

from turnkeeper.telemetry.reports import Report

logger = logging.getLogger("turnkeeper.telemetry")

Publish: TypeAlias = Callable[[Report], None]
"""Takes one report, and returns at once."""


def ignore_report(report: Report) -> None:
    """Take a report, and do nothing with it."""


class ReportStream:
    """The one stream of the reports of a server."""

    def __init__(self, readers: Iterable[Publish] = ()) -> None:
        """Hand every report to these readers."""
        self._readers = tuple(readers)

    def publish(self, report: Report) -> None:
        """Hand a report to every reader; an error that a reader raises is logged and changes nothing."""
        for read in self._readers:
            try:
                read(report)
            except Exception:
                logger.exception("a reader of reports failed at %s", type(report).__name__)
