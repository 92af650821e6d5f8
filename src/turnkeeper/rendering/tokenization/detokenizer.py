"""Incremental decoding: the texts of all chunks, put together, are the text of all ids.

Decoding each chunk alone gives another text. A character may straddle tokens, tokenizers of the SentencePiece kind
leave out the space before the first word that they decode, and with byte fallback one invalid byte turns the whole run
of bytes around it into replacement characters. Each chunk is therefore decoded behind the last tokens before it, and
text that a later id may still change is held back.

`tokenizers` has a ``DecodeStream`` for this. It is not used: it raises on a run of bytes that turns out to be invalid,
and it has no way to give out what is held back at the end.
"""

from collections.abc import Sequence

from turnkeeper.rendering.tokenization.tokenizer import Tokenizer

_UNFINISHED = "\ufffd"
_CONTEXT_SIZE = 4
"""The number of tokens before a chunk that are decoded with it: a character has at most four bytes, and a token at
least one."""


class Detokenizer:
    """Decodes one sequence of ids, a few ids at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Begin a sequence."""
        self._tokenizer = tokenizer
        self._context: list[int] = []  # the last ids that were decoded
        self._given = 0  # how many characters of the context's text are given out
        self._pending: list[int] = []  # ids behind the context

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that these ids complete."""
        self._pending.extend(ids)
        end = len(self._pending)
        while end and self._pending[end - 1] in self._tokenizer.byte_ids:
            end -= 1
        return self._decode_pending(end, is_last=False) if end else ""

    def flush(self) -> str:
        """Return the text that was held back. Call it at the end of the sequence, or before a marker."""
        return self._decode_pending(len(self._pending), is_last=True)

    def pass_over(self, marker: int) -> None:
        """Skip a marker whose text the caller gives out. Call it only after ``flush``."""
        self._keep([*self._context, marker])
        self._given = len(self._decode_ids(self._context))

    def _decode_pending(self, end: int, *, is_last: bool) -> str:
        window = [*self._context, *self._pending[:end]]
        del self._pending[:end]
        text = self._decode_ids(window)
        held = 1 if text.endswith(_UNFINISHED) and not is_last else 0
        fresh = text[self._given : len(text) - held]
        self._keep(window)
        self._given = len(self._decode_ids(self._context)) - held
        return fresh

    def _keep(self, window: list[int]) -> None:
        self._context = window[-_CONTEXT_SIZE:]

    def _decode_ids(self, ids: list[int]) -> str:
        return self._tokenizer.decode_list(ids) if ids else ""
