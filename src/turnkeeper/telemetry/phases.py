"""The phases of a turn in flight, and the time that the turn spends in each."""

from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.clock import Clock
from turnkeeper.jsontypes import JsonObject


class TurnPhase(StrEnum):
    """What a turn in flight waits for."""

    RENDERING = "rendering"
    """The server renders the prompt."""
    GATE = "gate"
    """The engines are paused, or the reason for an aborted call is not known yet."""
    ENGINE = "engine"
    """An engine has the call."""
    HELD = "held"
    """The reply is complete, and no client is ready for it."""
    RECORDING = "recording"
    """The turn is being recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTimes:
    """The seconds that one turn spent in each phase."""

    rendering_s: float = 0.0
    gate_s: float = 0.0
    engine_s: float = 0.0
    """From each engine call to its reply, checks of the reply included; the sum over all calls of the turn."""
    held_s: float = 0.0
    recording_s: float = 0.0

    @property
    def here_s(self) -> float:
        """The seconds that the server itself took: rendering and recording."""
        return self.rendering_s + self.recording_s

    @property
    def total_s(self) -> float:
        """The seconds from the beginning of the turn to its end."""
        return self.rendering_s + self.gate_s + self.engine_s + self.held_s + self.recording_s

    def to_json(self) -> JsonObject:
        """Return the seconds by phase, rounded to microseconds."""
        return {name: round(self.get(phase), 6) for phase, name in _FIELDS.items()}

    def get(self, phase: TurnPhase) -> float:
        """Return the seconds that the turn spent in a phase."""
        seconds: float = getattr(self, _FIELDS[phase])
        return seconds


_FIELDS = {phase: f"{phase}_s" for phase in TurnPhase}
"""The field of `TurnTimes` for each phase."""


class PhaseClock:
    """Measures how long a turn is in each phase; a turn is in one phase at a time."""

    def __init__(self, clock: Clock) -> None:
        """Begin with the phase of rendering, now."""
        self._clock = clock
        self._seconds = dict.fromkeys(TurnPhase, 0.0)
        self._since = self.began = clock.now()
        self.phase = TurnPhase.RENDERING
        """The phase that the turn is in; the last one that it was in, once the clock has stopped."""
        self._is_running = True

    def enter(self, phase: TurnPhase) -> None:
        """Note that a phase begins now; nothing happens to a clock that has stopped."""
        if self._is_running:
            self._add()
            self.phase = phase

    def stop(self) -> None:
        """Note that the turn is over."""
        if self._is_running:
            self._add()
            self._is_running = False

    def _add(self) -> None:
        now = self._clock.now()
        self._seconds[self.phase] += now - self._since
        self._since = now

    @property
    def phase_age_s(self) -> float:
        """The seconds since the phase began; 0 once the clock has stopped."""
        return self._clock.now() - self._since if self._is_running else 0.0

    @property
    def age_s(self) -> float:
        """The seconds since the turn began, until now or until the clock stopped."""
        return (self._clock.now() if self._is_running else self._since) - self.began

    @property
    def times(self) -> TurnTimes:
        """The seconds in each phase, the one that lasts included."""
        seconds = {_FIELDS[phase]: spent for phase, spent in self._seconds.items()}
        seconds[_FIELDS[self.phase]] += self.phase_age_s
        return TurnTimes(**seconds)
