"""Back ends that generate: the seam, the wires that speak it, and what pauses and weight updates mean for a turn."""

from turnkeeper.engines.check import build_completion, check_generation, choose_versions
from turnkeeper.engines.engine import (
    Engine,
    EngineReport,
    EngineState,
    GenerateRequest,
    Generation,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.http import EngineClient
from turnkeeper.engines.pool import EnginePool, Member
from turnkeeper.engines.sglang import SglangEngine

__all__ = [
    "Engine",
    "EngineClient",
    "EnginePool",
    "EngineReport",
    "EngineState",
    "GenerateRequest",
    "Generation",
    "Member",
    "RelayReply",
    "RelayRequest",
    "SglangEngine",
    "build_completion",
    "check_generation",
    "choose_versions",
]
