"""The seam between a server and what follows its turns across services; without one, nothing happens."""

from collections.abc import Mapping
from typing import Protocol

from turnkeeper.ids import SessionId
from turnkeeper.telemetry.reports import Report


class Tracing(Protocol):
    """Follows turns and their engine calls, from the trace of the agent's request to that of the engine."""

    def begin_turn(self, session_id: SessionId, number: int, at: float, trace: Mapping[str, str]) -> Mapping[str, str]:
        """Follow a turn.

        Args:
            session_id: the session of the turn.
            number: the number of the turn in flight within its session.
            at: Unix seconds when the turn began.
            trace: the tracing headers of the agent's request, by their lower-case names.

        Returns:
            The tracing headers under which the turn calls engines.
        """
        ...

    def begin_call(self, rid: str, url: str, at: float, trace: Mapping[str, str]) -> Mapping[str, str]:
        """Follow an engine call.

        Args:
            rid: the id of the call.
            url: the engine's address.
            at: Unix seconds when the call began.
            trace: the tracing headers that `begin_turn` returned.

        Returns:
            The tracing headers that the engine is sent.
        """
        ...

    def read(self, report: Report) -> None:
        """Take a report; those of turns and calls that ended end what follows them."""
        ...

    async def close(self) -> None:
        """Hand on what is not handed on yet, within a few seconds."""
        ...


class NoTracing:
    """Follows nothing: every request's tracing headers go to the engine as they came."""

    def begin_turn(self, session_id: SessionId, number: int, at: float, trace: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers as they are."""
        return trace

    def begin_call(self, rid: str, url: str, at: float, trace: Mapping[str, str]) -> Mapping[str, str]:
        """Return the headers as they are."""
        return trace

    def read(self, report: Report) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""
