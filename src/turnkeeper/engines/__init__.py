"""One engine: the protocol by which turns are generated, and the wires of SGLang and vLLM that implement it."""

from turnkeeper.engines.check import build_completion, check_generation, choose_versions
from turnkeeper.engines.engine import (
    Engine,
    EngineState,
    EngineStatus,
    GenerateRequest,
    Generation,
    RelayReply,
    RelayRequest,
)
from turnkeeper.engines.message import build_parser
from turnkeeper.engines.net.client import EngineClient
from turnkeeper.engines.prompt_text import PromptText
from turnkeeper.engines.sglang.chat import SglangEngine
from turnkeeper.engines.sglang.generate import SglangGenerateEngine
from turnkeeper.engines.vllm.generate import VllmEngine

__all__ = [
    "Engine",
    "EngineClient",
    "EngineState",
    "EngineStatus",
    "GenerateRequest",
    "Generation",
    "PromptText",
    "RelayReply",
    "RelayRequest",
    "SglangEngine",
    "SglangGenerateEngine",
    "VllmEngine",
    "build_completion",
    "build_parser",
    "check_generation",
    "choose_versions",
]
