"""Decoding of byte-level vocabularies, in which every token stands for bytes of its own.

The text of ids is then that of the tokens' bytes, one after the other. `tokenizers` makes strings and vectors of every
token anew, which takes thirty times as long, and was three quarters of what a first collect takes.
"""

import json
from collections.abc import Iterable

from tokenizers import Tokenizer

from turnkeeper.rendering.tokenization.spelling import spell_bytes


class ByteDecoder(dict[int, bytes]):
    """The bytes of each id that was decoded so far, 130 bytes of memory each, and never more than the vocabulary."""

    def __init__(self, inner: Tokenizer) -> None:
        """Decode ids of this tokenizer."""
        super().__init__()
        self._inner = inner

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids as ``inner.decode`` does; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.__getitem__, ids)).decode("utf-8", "replace")

    def __missing__(self, token_id: int) -> bytes:
        """Look up the bytes of an id; an id outside of the vocabulary has none."""
        token = self._inner.id_to_token(token_id)
        found = self[token_id] = b"" if token is None else spell_bytes(token, token)
        return found


def find_byte_decoder(inner: Tokenizer) -> ByteDecoder | None:
    """Find out whether the tokenizer decodes bytes and nothing else; None where it does more than that."""
    state = None if inner.decoder is None else json.loads(inner.decoder.__getstate__())
    return ByteDecoder(inner) if state is not None and state.get("type") == "ByteLevel" else None
