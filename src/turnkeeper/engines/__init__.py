"""Back ends that generate: the seam, the wires that speak it, and what pauses and weight updates mean for a turn."""

from turnkeeper.engines.check import build_completion, check_generation, choose_versions
from turnkeeper.engines.clock import Clock, SystemClock
from turnkeeper.engines.connect import connect_engines
from turnkeeper.engines.engine import (
    Engine,
    EngineReport,
    EngineState,
    GenerateRequest,
    Generation,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.fleet import EngineFleet, UpdateReport
from turnkeeper.engines.gate import Gate
from turnkeeper.engines.generate import SglangGenerateEngine
from turnkeeper.engines.http import EngineClient
from turnkeeper.engines.message import build_parser
from turnkeeper.engines.pool import EnginePool, Member
from turnkeeper.engines.progress import TurnProgress
from turnkeeper.engines.reading import RunnerOptions
from turnkeeper.engines.runner import TurnOutcome, TurnRunner
from turnkeeper.engines.sglang import SglangEngine
from turnkeeper.engines.vllm import VllmEngine
from turnkeeper.engines.watch import EngineWatch

__all__ = [
    "Clock",
    "Engine",
    "EngineClient",
    "EngineFleet",
    "EnginePool",
    "EngineReport",
    "EngineState",
    "EngineWatch",
    "Gate",
    "GenerateRequest",
    "Generation",
    "Member",
    "RelayReply",
    "RelayRequest",
    "RunnerOptions",
    "SglangEngine",
    "SglangGenerateEngine",
    "SystemClock",
    "TurnOutcome",
    "TurnProgress",
    "TurnRunner",
    "UpdateReport",
    "VllmEngine",
    "build_completion",
    "build_parser",
    "check_generation",
    "choose_versions",
    "connect_engines",
]
