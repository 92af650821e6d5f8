"""Encoders, which turn text into ids: the `tokenizers` library, and faster ones that must give the ids of `tokenizers`.

::

    tokenizer.encoder = FallbackEncoder(fast, tokenizer.huggingface_encoder)      the fast encoder takes over

Before a fast encoder takes over, `turnkeeper.rendering.checks.check_encoder` compares it with `tokenizers`.
"""

from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer as HuggingFaceTokenizer

from turnkeeper.core.tokens import TokenIds, freeze_ids

LONG_S = "\u017f"
"""The letter that patterns take for an s where they ignore case. A fast encoder may leave texts with it to
`tokenizers`."""


class Encoder(Protocol):
    """Turns text into ids. Any number of threads may share one encoder."""

    def encode(self, text: str) -> TokenIds:
        """Return the ids of a text: markers become their ids, and nothing is added around the text.

        Args:
            text: a text that is not empty and has no lone surrogates.

        Raises:
            RefusedTextError: this encoder cannot encode the text, but another one may.
        """
        ...


class RefusedTextError(Exception):
    """A fast encoder cannot encode a text; ``FallbackEncoder`` catches the error and encodes with `tokenizers`."""


class HuggingFaceEncoder:
    """Encodes with the `tokenizers` library, whose ids are right by definition."""

    def __init__(self, inner: HuggingFaceTokenizer) -> None:
        """Keep a tokenizer without padding and truncation."""
        self._inner = inner

    def encode(self, text: str) -> TokenIds:
        """Return the ids of any text; see ``Encoder``."""
        # Of one text only the batch call lets go of the interpreter lock, and it leaves out the offsets: 500 KB hold
        # other threads up for 4 ms instead of 264, and take a fifth less time.
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=False)
        return freeze_ids(encoding.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A text, and the ids that a fast encoder gave for it."""

    text: str
    ids: TokenIds


class FallbackEncoder:
    """Encodes with a fast encoder, and with another encoder the texts that the fast one refuses.

    One text at a time is kept with its ids, for the comparison with `tokenizers` while the server runs.
    """

    def __init__(self, fast: Encoder, fallback: Encoder) -> None:
        self._fast = fast
        self._fallback = fallback
        self._kept: Encoded | None = None
        self.refused = 0
        """The number of texts that the fast encoder refused."""

    def encode(self, text: str) -> TokenIds:
        """Return the ids of any text; see ``Encoder``."""
        try:
            ids = self._fast.encode(text)
        except RefusedTextError:
            self.refused += 1
            return self._fallback.encode(text)
        if self._kept is None:
            self._kept = Encoded(text=text, ids=ids)
        return ids

    def forget(self, text: str) -> None:
        """Drop a kept text whose ids were of no use, so that it is not encoded again for a comparison."""
        if self._kept is not None and self._kept.text == text:
            self._kept = None

    def take_kept(self) -> Encoded | None:
        """Return the first text that was encoded since the last call; None where there was none."""
        kept, self._kept = self._kept, None
        return kept
