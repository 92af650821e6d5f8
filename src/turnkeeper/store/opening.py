"""The opening of a session as it is stored: the event, and what a server needs to go on with the session."""

from dataclasses import dataclass, field

from turnkeeper.core.event import SessionOpened
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpening:
    """The first record of a session."""

    event: SessionOpened
    settings: JsonObject = field(default_factory=JsonObject)
    """What the session was created with, as the body of ``POST /sessions`` has it: pins, metadata, limits, scopes."""
    ttl_s: float
    """Seconds without a request after which the session expires."""
    limit_tokens: int | None = None
    """Token limit of a path; None for none."""
    key_hash: bytes | None = field(default=None, repr=False)
    """The keyed hash of the session's key; None where it has none. What the key opens stands in the settings."""

    @property
    def at(self) -> float:
        """Unix seconds when the session was opened."""
        return self.event.at
