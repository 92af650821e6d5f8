"""Tools for tests: scripted engines, servers on free ports, a manual clock. Nothing of turnkeeper imports it."""

from turnkeeper.testing.clock import ManualClock, settle
from turnkeeper.testing.engine import ScriptedEngine, unreachable_url
from turnkeeper.testing.exchange import RecordedRequest
from turnkeeper.testing.pair import ScriptedPair
from turnkeeper.testing.script import MoeShape, Phase, ScriptedReply
from turnkeeper.testing.serve import running, running_in_thread
from turnkeeper.testing.vllm import ScriptedVllm

__all__ = [
    "ManualClock",
    "MoeShape",
    "Phase",
    "RecordedRequest",
    "ScriptedEngine",
    "ScriptedPair",
    "ScriptedReply",
    "ScriptedVllm",
    "running",
    "running_in_thread",
    "settle",
    "unreachable_url",
]
