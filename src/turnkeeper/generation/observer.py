"""The protocol by which a turn learns about the engines while it runs; the fleet's monitor implements it."""

from collections.abc import Mapping
from typing import Protocol


class EngineObserver(Protocol):
    """Knows the weight versions of the engines, as far as they were observed."""

    async def fetch_versions(self) -> Mapping[str, str]:
        """Return a snapshot of the weight version of each engine, by URL; ask the engines where it is out of date."""
        ...

    def find_version(self, url: str) -> str | None:
        """Find the weight version last observed at an engine; None when unknown."""
        ...

    def note_version(self, url: str, version: str) -> None:
        """Note that a weight version was observed at an engine."""
        ...

    def was_updated(self, url: str) -> bool:
        """Return True if an engine may have got other weights since this server first saw it."""
        ...

    def poll_often(self, duration_s: float) -> None:
        """Poll the engines at once, and often for this many seconds."""
        ...
