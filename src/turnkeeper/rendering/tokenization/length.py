"""The least number of tokens that a text can have, computed without encoding it.

A token stands for a piece of the vocabulary, and no piece is longer than the longest, so a text of N characters has at
least N / (characters of the longest piece) tokens: what is far too long is refused at once, and nothing that fits ever
is. This only holds where a tokenizer neither drops nor folds text, which its parts show; for any other tokenizer there
is no bound.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import models, pre_tokenizers

from turnkeeper.jsontypes import JsonObject

_KEEPING_SPLITS = frozenset({"Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"})
_NFC_BYTES_OF = (2, 3)
"""NFC leaves two bytes of UTF-8 or more for three characters: U+0390 is an iota with a diaeresis and an accent."""


class TextTooLongError(Exception):
    """A text has more tokens than there is room for. Never leaves the service: it becomes the error of a context."""

    def __init__(self, least_tokens: int) -> None:
        super().__init__(f"at least {least_tokens} tokens")
        self.least_tokens = least_tokens
        """The fewest tokens that the text can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBound:
    """The lengths that bound how few tokens a text can have."""

    longest_piece: int
    """Characters of the longest piece; of a byte-level tokenizer each stands for a byte."""
    composes: bool
    """True when characters are composed (NFC) first, so that a text that is not ASCII may become shorter."""
    is_byte_level: bool

    def count_least(self, text: str) -> int:
        """Count the fewest tokens that the text can have; 0 where that is not known."""
        size = len(text)
        if self.composes and not text.isascii():
            part, of = _NFC_BYTES_OF if self.is_byte_level else (0, 1)
            size = size * part // of
        return -(-size // self.longest_piece)


def find_bound(tokenizer: HuggingFaceTokenizer) -> LengthBound | None:
    """Find the bound of a tokenizer; None where it may drop or fold text."""
    model = tokenizer.model
    added = tokenizer.get_added_tokens_decoder().values()
    normalizers = list(_list_parts(tokenizer.normalizer, "normalizers"))
    splitters = list(_list_parts(tokenizer.pre_tokenizer, "pretokenizers"))
    is_byte_level = any(part["type"] == "ByteLevel" for part in (*splitters, *normalizers))
    if not isinstance(model, models.BPE) or any(token.lstrip or token.rstrip for token in added):
        return None
    alphabet = pre_tokenizers.ByteLevel.alphabet() if is_byte_level else [f"<0x{byte:02X}>" for byte in range(256)]
    keeps_bytes = (is_byte_level or model.byte_fallback) and None not in map(tokenizer.token_to_id, alphabet)
    if not (keeps_bytes and all(map(_keeps_text, normalizers)) and all(map(_keeps_splits, splitters))):
        return None
    ids = range(max(tokenizer.get_vocab_size(), *tokenizer.get_added_tokens_decoder(), 0) + 1)
    # One by one: a thread that asks for the whole vocabulary at once holds all others up for a tenth of a second.
    return LengthBound(
        longest_piece=max(len(tokenizer.id_to_token(number) or "") for number in ids),
        composes=any(part["type"] == "NFC" for part in normalizers),
        is_byte_level=is_byte_level,
    )


def _list_parts(part: Any, inner: str) -> Iterable[JsonObject]:
    """List the parts of a normalizer or pre-tokenizer as tokenizer.json writes them."""
    if part is None:
        return ()
    written: JsonObject = json.loads(part.__getstate__())
    return written[inner] if written["type"] == "Sequence" else (written,)


def _keeps_text(part: JsonObject) -> bool:
    """Return True when a normalizer makes no text shorter, except by composing characters."""
    if part["type"] == "Replace":
        pattern = part["pattern"].get("String")
        return pattern is not None and len(part["content"]) >= len(pattern)
    return part["type"] in ("NFC", "Prepend", "ByteLevel")


def _keeps_splits(part: JsonObject) -> bool:
    """Return True when a pre-tokenizer drops no character."""
    if part["type"] in ("Split", "Punctuation"):
        return part["behavior"] in _KEEPING_SPLITS
    return part["type"] in ("ByteLevel", "Digits", "Metaspace", "UnicodeScripts")
