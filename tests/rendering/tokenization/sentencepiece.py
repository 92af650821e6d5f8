"""Small tokenizers of the SentencePiece kind: a mark of space before words, and bytes for what has no piece.

Built with the `tokenizers` library; each decoder is one that checkpoints really have.
"""

from functools import cache
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from turnkeeper.rendering import Tokenizer

MARKERS = ("<s>", "<|im_start|>", "<|im_end|>")
PLAIN_MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_WORDS = ["▁", "▁▁", "▁Hello", "▁world", "Hello", "world", "▁a", "a", "!", "\n", "é", "�", "{", "}", '"', ":", ","]
_LETTERS = "bcdefghijklmnopqrstuvwxyz_<>|/0123456789"

DECODERS: dict[str, list[Any]] = {
    "metaspace": [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")],
    "metaspace first": [decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback(), decoders.Fuse()],
    "llama": [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)],
    "gemma": [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()],
}


@cache
def build_sentencepiece(kind: str) -> Tokenizer:
    """A tokenizer with one of these decoders."""
    pieces = [("<unk>", 0.0)] + [(f"<0x{value:02X}>", -20.0) for value in range(256)]
    pieces += [(piece, -1.0) for piece in _WORDS] + [(letter, -9.0) for letter in _LETTERS]
    inner = HuggingFaceTokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    if kind.startswith("metaspace"):
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    else:
        before = [normalizers.Prepend("▁")] if kind == "llama" else []
        inner.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(DECODERS[kind])
    inner.add_special_tokens(list(MARKERS))
    inner.add_tokens([AddedToken(marker, normalized=False) for marker in PLAIN_MARKERS])
    return Tokenizer(inner.to_str().encode())
