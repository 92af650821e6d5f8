"""Hands each event of each session, once and in order, to whoever reads them: metrics, a store, a dashboard.

Events are written by sessions; this only remembers how far each was read.
"""

import logging
from collections.abc import Callable
from typing import TypeAlias

from turnkeeper.core import Event
from turnkeeper.ids import SessionId
from turnkeeper.service.entry import SessionEntry

logger = logging.getLogger("turnkeeper.events")

Reader: TypeAlias = Callable[[SessionId, Event], None]
"""Gets one event; must return soon, and what it raises is logged and changes nothing."""


class Publisher:
    """The one stream of events."""

    def __init__(self) -> None:
        self._readers: list[Reader] = []

    def subscribe(self, reader: Reader) -> None:
        """Hand this reader every event from now on."""
        self._readers.append(reader)

    def publish(self, entry: SessionEntry) -> None:
        """Hand on what happened to a session since the last time."""
        events = entry.session.events
        start, entry.published = entry.published, len(events)
        for event in events[start:]:
            for reader in self._readers:
                try:
                    reader(entry.id, event)
                except Exception:
                    logger.exception("a reader of events failed at %s", type(event).__name__)
