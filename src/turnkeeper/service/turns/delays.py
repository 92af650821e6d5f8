"""Turns that take long: each is reported once it has been in flight for a while, and again when its age has doubled."""

from collections.abc import Callable

from turnkeeper.clock import Clock
from turnkeeper.headers import REQUEST_ID
from turnkeeper.ids import SessionId
from turnkeeper.service.sessions import Registry
from turnkeeper.service.turns.in_flight import TurnInFlight
from turnkeeper.telemetry import Publish, TurnDelayed, TurnPhase

_LOOKS = 4
"""How often the turns are looked at within the time after which they are reported."""


class DelayWatch:
    """Reports the turns that have been in flight for long."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        *,
        after_s: float,
        publish: Publish,
        find_engine: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Watch the turns of all sessions.

        Args:
            registry: the sessions.
            clock: for the wait between two looks.
            after_s: the age at which a turn is reported first.
            publish: takes the reports.
            find_engine: finds the URL of the engine that has a call, by the call's request id; empty where none has it.
        """
        self._registry = registry
        self._clock = clock
        self._after_s = after_s
        self._publish = publish
        self._find_engine = find_engine
        self._reported: dict[tuple[SessionId, int], float] = {}
        """By session and number, the age at which each turn that was reported was reported last."""

    async def run(self) -> None:
        """Look at the turns again and again, until cancelled."""
        while True:
            await self._clock.sleep(self._after_s / _LOOKS)
            self.look()

    def look(self) -> None:
        """Report each turn that has become old enough."""
        reported: dict[tuple[SessionId, int], float] = {}
        for entry in self._registry:
            for turn in tuple(entry.in_flight.values()):
                key, age_s = (entry.id, turn.pending.number), turn.phases.age_s
                before_s = self._reported.get(key)
                if age_s >= (self._after_s if before_s is None else 2 * before_s):
                    self._publish(self._describe(entry.id, turn))
                    reported[key] = age_s
                elif before_s is not None:
                    reported[key] = before_s
        self._reported = reported

    def _describe(self, session_id: SessionId, turn: TurnInFlight) -> TurnDelayed:
        phases, status = turn.phases, turn.call_status
        return TurnDelayed(
            at=self._clock.unix(),
            session_id=session_id,
            number=turn.pending.number,
            phase=phases.phase,
            phase_age_s=phases.phase_age_s,
            age_s=phases.age_s,
            engine_calls=status.engine_calls,
            engine_url=self._find_engine(status.rid) if phases.phase is TurnPhase.ENGINE else "",
            request_id=turn.pending.request.trace.get(REQUEST_ID, ""),
        )
