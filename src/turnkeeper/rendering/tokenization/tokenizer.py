"""The checkpoint's tokenizer: text to ids and ids to text.

A marker such as ``<|im_end|>`` becomes its control id wherever it stands, in the message of a user or the result of a
tool too, because the model's own tokenizer and the engines do the same with the rendered conversation. Such a text is
never refused and never escaped.

Nothing is added around a text: BOS tokens come from the chat template alone.
"""

from functools import cached_property

from tokenizers import Tokenizer as HuggingFaceTokenizer

from turnkeeper.core.tokens import NO_TOKENS, TokenIds
from turnkeeper.errors import ConfigError
from turnkeeper.rendering.tokenization.byte_decoder import find_byte_decoder
from turnkeeper.rendering.tokenization.encoder import Encoder, FallbackEncoder, HuggingFaceEncoder
from turnkeeper.rendering.tokenization.length import LengthBound, TextTooLongError, find_bound
from turnkeeper.rendering.tokenization.spelling import spell_token

_SPACED = " a b"
_BEFORE = "\n"

BROKEN = "\ufffd"
"""Stands in a text for bytes that are no character."""


class Tokenizer:
    """Encodes and decodes by a checkpoint's ``tokenizer.json``."""

    def __init__(self, tokenizer_json: bytes) -> None:
        """Load a tokenizer.

        Raises:
            ConfigError: the `tokenizers` library cannot parse the bytes.
        """
        try:
            self._inner = HuggingFaceTokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # the library raises bare exceptions of its own
            raise ConfigError(
                f"tokenizer.json cannot be read by the tokenizers library: {error}",
                hint="--hf-checkpoint must name a folder with a fast tokenizer's tokenizer.json",
            ) from error
        self._inner.no_padding()
        self._inner.no_truncation()
        self._byte_decoder = find_byte_decoder(self._inner)
        self.huggingface_encoder = HuggingFaceEncoder(self._inner)
        self.encoder: Encoder = self.huggingface_encoder
        """The encoder in use. It may be replaced at any time by another one that gives the same ids."""

    def encode(self, text: str, room: int | None = None) -> TokenIds:
        """Return the ids of a text; markers become their ids, and lone surrogates become U+FFFD.

        Args:
            text: any text.
            room: the number of ids that are of use; None for any number. A text with more ids is not kept for the
                comparison of encoders.

        Raises:
            TextTooLongError: the length of the text alone shows that it has more ids than there is room for.
        """
        if not text:
            return NO_TOKENS
        text = _replace_surrogates(text)
        if room is not None and len(text) > room and (least := self.count_least(text)) > room:
            raise TextTooLongError(least)
        encoder = self.encoder
        ids = encoder.encode(text)
        if room is not None and len(ids) > room and isinstance(encoder, FallbackEncoder):
            encoder.forget(text)
        return ids

    def count_least(self, text: str) -> int:
        """Count the fewest ids that a text can have, without encoding it; 0 where that is not known."""
        return 0 if self._bound is None else self._bound.count_least(text)

    @cached_property
    def _bound(self) -> LengthBound | None:
        return find_bound(self._inner)

    def encode_after(self, anchor: int, text: str, room: int | None = None) -> TokenIds:
        """Return the ids of a text that follows a control token.

        Some tokenizers encode the beginning of a text in another way, with a space before it. Encoded behind the
        control token, the text has the ids that it has in place.

        Args:
            anchor: the id of the control token before the text.
            text: the text that follows the control token.
            room: as for ``encode``.
        """
        marker = self._inner.id_to_token(anchor)
        ids = self.encode(f"{marker}{text}", None if room is None else room + 1)
        return ids[1:] if len(ids) and ids[0] == anchor else self.encode(text, room)

    def decode(self, ids: TokenIds) -> str:
        """Return the text of ids, control tokens included; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_list(ids.tolist())

    def decode_list(self, ids: list[int]) -> str:
        """Return the text of ids in a list, as ``decode`` does; for a few ids building an array would cost more."""
        if self._byte_decoder is not None:
            return self._byte_decoder.decode(ids)
        return self._inner.decode(ids, skip_special_tokens=False)

    def spell(self, token_id: int) -> bytes:
        """Return the bytes that an id stands for: of a token that is part of a character, those of its part."""
        text = self.decode_list([token_id])
        if BROKEN not in text:
            return text.encode()
        token = self._inner.id_to_token(token_id)
        return text.encode() if token is None else spell_token(token, text)

    def normalize(self, text: str) -> str:
        """Return a text as the tokenizer normalizes it (to NFC, for some), which is what decoding its ids gives."""
        normalizer = self._inner.normalizer
        if normalizer is None or text.isascii():
            return text
        text = _replace_surrogates(text)
        if normalizer.normalize_str(_SPACED) != _SPACED:
            return text  # a normalizer that moves spaces is undone by decoding
        return normalizer.normalize_str(text)

    @cached_property
    def moves_spaces(self) -> bool:
        """True when the beginning of a text is encoded with another space than the same text in the middle of one."""
        before = self.huggingface_encoder.encode(_BEFORE)
        inside = self.huggingface_encoder.encode(f"{_BEFORE}a").tolist()
        return inside != [*before.tolist(), *self.huggingface_encoder.encode("a").tolist()]

    def find_id(self, marker: str) -> int | None:
        """Return the id of a token; None where the vocabulary has no such token."""
        return self._inner.token_to_id(marker)

    def get_id(self, marker: str) -> int:
        """Return the id of a marker.

        Raises:
            ConfigError: the vocabulary has no such token.
        """
        found = self.find_id(marker)
        if found is None:
            raise ConfigError(
                f"the tokenizer has no token {marker!r}",
                hint="--tito-model names another family than the checkpoint's; --tito-model default takes any template",
            )
        return found

    @property
    def is_fast(self) -> bool:
        """True when an encoder other than `tokenizers` is in use."""
        return self.encoder is not self.huggingface_encoder

    @property
    def size(self) -> int:
        """The number of ids in the vocabulary, markers included."""
        return self._inner.get_vocab_size()

    @property
    def id_limit(self) -> int:
        """One more than the highest id, since added tokens may leave a gap behind the vocabulary."""
        return max(self.size, max(self.markers, default=0) + 1)

    @cached_property
    def markers(self) -> dict[int, str]:
        """The text of every added token by its id: control tokens, and markers in texts such as ``<think>``."""
        return {number: token.content for number, token in self._inner.get_added_tokens_decoder().items()}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the added tokens that are flagged as special, which are those that delimit messages."""
        return frozenset(number for number, token in self._inner.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """The ids of tokens that stand for one byte each (``<0xF0>``), in tokenizers with byte fallback."""
        decoder = self._inner.decoder
        if decoder is None or b"ByteFallback" not in decoder.__getstate__():
            return frozenset()
        found = (self.find_id(f"<0x{value:02X}>") for value in range(256))
        return frozenset(number for number in found if number is not None)

    def is_special(self, token: int) -> bool:
        """Return True when an id is a control token."""
        return token in self.special_ids


def _replace_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
