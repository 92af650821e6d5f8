"""The generation of one turn, from engine request to completion, through pauses and aborts of weight updates."""

from turnkeeper.generation.call_status import CallStatus
from turnkeeper.generation.gate import Gate
from turnkeeper.generation.part_reader import RunnerOptions
from turnkeeper.generation.runner import TurnRunner
from turnkeeper.generation.turn_run import TurnOutcome

__all__ = [
    "CallStatus",
    "Gate",
    "RunnerOptions",
    "TurnOutcome",
    "TurnRunner",
]
