"""Text to ids by a library: `tokenizers`, whose ids are right by definition, or a faster one that must agree with it.

::

    tokenizer.encoder = BackedEncoder(fast, tokenizer.reference)      the fast one takes over, `tokenizers` behind it

Knows neither how a fast encoder is checked (`turnkeeper.rendering.checks.encoders`) nor when.
"""

from dataclasses import dataclass
from typing import Protocol

from tokenizers import Tokenizer as HuggingFaceTokenizer

from turnkeeper.core.tokens import TokenIds, freeze_ids

LONG_S = "\u017f"
"""An s where case is ignored; texts with it stand alone, since a fast encoder may leave them to `tokenizers`."""


class Encoder(Protocol):
    """Turns text into ids. Any number of threads may use one."""

    def encode(self, text: str) -> TokenIds:
        """The ids of a text, markers in it included, nothing added around it.

        Args:
            text: not empty, without lone surrogates.

        Raises:
            RefusedTextError: this encoder cannot encode the text; another one may.
        """
        ...


class RefusedTextError(Exception):
    """A fast encoder failed on a text. Never leaves rendering: `tokenizers` encodes the text instead."""


class HuggingFaceEncoder:
    """The `tokenizers` library."""

    def __init__(self, inner: HuggingFaceTokenizer) -> None:
        """Keep a tokenizer without padding and truncation."""
        self._inner = inner

    def encode(self, text: str) -> TokenIds:
        """See ``Encoder``; takes every text."""
        # Of one text only the batch call lets go of the interpreter lock, and it leaves out the offsets: 500 KB hold
        # other threads up for 4 ms instead of 264, and take a fifth less time.
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=False)
        return freeze_ids(encoding.ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A text, and the ids that the fast encoder gave for it."""

    text: str
    ids: TokenIds


class FallbackEncoder:
    """A fast encoder that `tokenizers` stands behind: it takes the texts that the fast one refuses.

    One text is kept at a time, for whoever compares the two while they serve.
    """

    def __init__(self, fast: Encoder, fallback: Encoder) -> None:
        self._fast = fast
        self._fallback = fallback
        self._kept: Encoded | None = None
        self.refused = 0
        """How many texts the fast encoder refused."""

    def encode(self, text: str) -> TokenIds:
        """See ``Encoder``; takes every text."""
        try:
            ids = self._fast.encode(text)
        except RefusedTextError:
            self.refused += 1
            return self._fallback.encode(text)
        if self._kept is None:
            self._kept = Encoded(text=text, ids=ids)
        return ids

    def forget(self, text: str) -> None:
        """Keep a text no longer that came to nothing: encoding it once more would be in vain."""
        if self._kept is not None and self._kept.text == text:
            self._kept = None

    def take_kept(self) -> Encoded | None:
        """The first text since this was last asked; None when there was none."""
        kept, self._kept = self._kept, None
        return kept
