"""Tokens to text, as they are sampled: bytes that make half a character wait for the rest of it, and stop strings
are found where they end.

Knows the byte-level vocabulary of a ``tokenizer.json``. Knows no chat format.
"""

import codecs
from collections.abc import Sequence

from tokenizers import Tokenizer


def _byte_of_character() -> dict[str, int]:
    """Map the characters of byte-level vocabularies to bytes: printable Latin-1 to itself, others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


class Vocabulary:
    """The bytes of every token, and which tokens are special."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        spelled = _byte_of_character()
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes: list[bytes] = []
        for token_id in range(tokenizer.get_vocab_size()):
            token = tokenizer.id_to_token(token_id) or ""
            spell = token.encode() if token_id in added else bytes(spelled[character] for character in token)
            self._bytes.append(spell)

    def __len__(self) -> int:
        return len(self._bytes)

    def get_bytes(self, token_id: int) -> bytes:
        """Get a token's bytes; none for ids that the model has and the tokenizer has not."""
        return self._bytes[token_id] if token_id < len(self._bytes) else b""


class OutputText:
    """The text of one request's output, token by token."""

    def __init__(self, vocabulary: Vocabulary, *, stop: Sequence[str], skip_special: bool) -> None:
        """Begin an output.

        Args:
            vocabulary: gives the tokens' bytes.
            stop: the texts that end it.
            skip_special: whether special tokens leave no text.
        """
        self._vocabulary = vocabulary
        self._stop = [text for text in stop if text]
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._given = 0
        self._stop_at = 0
        self._is_ended = False

    @property
    def text(self) -> str:
        """Everything so far but an unfinished character."""
        return self._text

    def push(self, token_id: int) -> str | None:
        """Append a token; the stop text that it completes, if it does. The text goes no further than its token."""
        if self._skip_special and token_id in self._vocabulary.special_ids:
            return None
        piece = self._decoder.decode(self._vocabulary.get_bytes(token_id))
        searched_from = max(0, len(self._text) - max((len(text) for text in self._stop), default=0))
        self._text += piece
        found = [(at, text) for text in self._stop if (at := self._text.find(text, searched_from)) >= 0]
        if not found:
            return None
        self._stop_at, stop = min(found)
        return stop

    def cut(self) -> None:
        """End before the stop text that `push` found."""
        self._text = self._text[: self._stop_at]
        self._is_ended = True

    def finish(self) -> None:
        """End the text: what waits for the rest of its character becomes a replacement character."""
        if not self._is_ended:
            self._text += self._decoder.decode(b"", final=True)
        self._is_ended = True

    def take(self) -> str:
        """Take the text that has become certain since the last call: the beginning of a stop text waits."""
        end = len(self._text)
        if not self._is_ended:
            end -= max((_overlap(self._text, stop) for stop in self._stop), default=0)
        piece = self._text[self._given : end]
        self._given = max(self._given, end)
        return piece


def _overlap(text: str, stop: str) -> int:
    """Count the characters at the end of `text` that begin `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
