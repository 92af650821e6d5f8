"""The stream of events: each event of each session goes to every reader, once and in order."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

from turnkeeper.core import Event
from turnkeeper.ids import SessionId

logger = logging.getLogger("turnkeeper.events")

Reader: TypeAlias = Callable[[SessionId, Event], None]
"""Takes one event, and must return soon; an error that it raises is logged and changes nothing."""


class EventStream:
    """The one stream of the events of all sessions."""

    def __init__(self, readers: Iterable[Reader] = ()) -> None:
        """Hand every event to these readers."""
        self._readers = tuple(readers)

    def publish(self, session_id: SessionId, event: Event) -> None:
        """Hand an event to every reader."""
        for reader in self._readers:
            try:
                reader(session_id, event)
            except Exception:
                logger.exception("a reader of events failed at %s", type(event).__name__)
