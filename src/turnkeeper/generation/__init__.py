"""One turn through pauses, aborts and resumed calls, from engine request to completion."""

from turnkeeper.generation.gate import Gate
from turnkeeper.generation.progress import TurnProgress
from turnkeeper.generation.reading import RunnerOptions
from turnkeeper.generation.runner import TurnOutcome, TurnRunner

__all__ = [
    "Gate",
    "RunnerOptions",
    "TurnOutcome",
    "TurnProgress",
    "TurnRunner",
]
