"""The status of a turn's engine calls, which accounts for the tokens of a turn that is given up while it runs."""

from dataclasses import dataclass

from turnkeeper.telemetry import PhaseClock, TurnPhase


@dataclass(slots=True, kw_only=True)
class CallStatus:
    """The status of the engine calls of one turn, kept up to date by the runner."""

    has_open_call: bool = False
    """True while an engine call runs whose sampled tokens are unknown; False at the gate, before and between calls."""
    aborted_tokens: int = 0
    """The number of sampled tokens of aborted calls, whether their parts are held or not."""
    engine_calls: int = 0
    """The number of calls made so far; a call that an engine refuses because it is paused counts as none."""
    rid: str = ""
    """The request id of the newest call at its engine; empty before the first."""
    engine_url: str = ""
    """The engine that answered last; empty before the first answer."""
    phases: PhaseClock | None = None
    """Measures the waits at the gate and for the engine; None measures nothing."""

    def enter(self, phase: TurnPhase) -> None:
        """Note that the turn waits for something else from now on."""
        if self.phases is not None:
            self.phases.enter(phase)
