"""What a turn asks about the engines while it runs. The fleet answers it; a turn knows nothing else of the fleet."""

from collections.abc import Mapping
from typing import Protocol


class EngineObserver(Protocol):
    """Knows which weights the engines hold, as far as anybody has seen."""

    async def fetch_versions(self) -> Mapping[str, str]:
        """The weight version of each engine, by URL, as a snapshot; asks the engines where that is out of date."""
        ...

    def find_version(self, url: str) -> str | None:
        """The weight version last seen at an engine; None when unknown."""
        ...

    def note_version(self, url: str, version: str) -> None:
        """Note that an engine was seen to hold a weight version."""
        ...

    def was_updated(self, url: str) -> bool:
        """Whether an engine may have been given other weights since the server watches it."""
        ...

    def poll_often(self, duration_s: float) -> None:
        """Look at the engines at once, and often for so many seconds."""
        ...
