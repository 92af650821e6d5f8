"""The phases of a turn.

1. A turn is in one phase at a time, and its seconds add up to its age.
2. A clock that has stopped does not go on.
"""

from turnkeeper.telemetry import PhaseClock, TurnPhase, TurnTimes
from turnkeeper.testing import ManualClock


async def test_seconds_are_counted_for_the_phase_in_which_they_pass() -> None:
    clock = ManualClock()
    phases = PhaseClock(clock)
    for phase, seconds in ((TurnPhase.GATE, 1.0), (TurnPhase.ENGINE, 2.0), (TurnPhase.GATE, 4.0)):
        await clock.advance(seconds)
        phases.enter(phase)
    await clock.advance(8.0)
    assert phases.times == TurnTimes(rendering_s=1.0, gate_s=2.0 + 8.0, engine_s=4.0)
    assert (phases.phase, phases.phase_age_s, phases.age_s) == (TurnPhase.GATE, 8.0, 15.0)
    assert phases.times.total_s == phases.age_s


async def test_a_stopped_clock_keeps_its_times_and_its_last_phase() -> None:
    clock = ManualClock()
    phases = PhaseClock(clock)
    await clock.advance(1.0)
    phases.enter(TurnPhase.ENGINE)
    await clock.advance(2.0)
    phases.stop()
    await clock.advance(4.0)
    phases.enter(TurnPhase.HELD)
    phases.stop()
    assert phases.times == TurnTimes(rendering_s=1.0, engine_s=2.0)
    assert (phases.phase, phases.phase_age_s, phases.age_s) == (TurnPhase.ENGINE, 0.0, 3.0)


def test_times_name_every_phase() -> None:
    assert list(TurnTimes(gate_s=0.12345678).to_json().items()) == [
        ("rendering_s", 0.0),
        ("gate_s", 0.123457),
        ("engine_s", 0.0),
        ("held_s", 0.0),
        ("recording_s", 0.0),
    ]
