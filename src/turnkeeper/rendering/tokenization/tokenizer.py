"""Text to ids and back, exactly as the checkpoint's tokenizer does it.

One policy for control tokens: text is what it is. A marker such as ``<|im_end|>`` becomes the control id wherever it
stands, in a user's message or a tool's result too, because that is what the model's own tokenizer and the engines do
with the rendered conversation. It is never a refusal and never an escape.

Nothing is added around the text: the template alone says how many BOS there are.
"""

import json
from functools import cached_property

from tokenizers import Tokenizer as HuggingFaceTokenizer

from turnkeeper.core.tokens import NO_TOKENS, TokenIds
from turnkeeper.errors import ConfigError
from turnkeeper.rendering.tokenization.encoder import Encoder, FallbackEncoder, HuggingFaceEncoder
from turnkeeper.rendering.tokenization.length import LengthBound, TextTooLongError, find_bound

_SPACED = " a b"


class Tokenizer:
    """A checkpoint's ``tokenizer.json``."""

    def __init__(self, tokenizer_json: bytes) -> None:
        """Load it.

        Raises:
            ConfigError: the bytes are no tokenizer.
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
        self.huggingface_encoder = HuggingFaceEncoder(self._inner)
        self.encoder: Encoder = self.huggingface_encoder
        """What encodes; may be replaced at any time by one that gives the same ids. Decoding stays as it is."""

    def encode(self, text: str, room: int | None = None) -> TokenIds:
        """The ids of a text; markers in it become their ids, lone surrogates become U+FFFD.

        Args:
            text: any text.
            room: how many ids are of use, if that is limited; a text that has more is not kept for comparison.

        Raises:
            TextTooLongError: the text has more ids than there is room for, which is certain without encoding it.
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
        """The fewest ids that a text can have, without encoding it; 0 where that is not known."""
        return 0 if self._bound is None else self._bound.count_least(text)

    @cached_property
    def _bound(self) -> LengthBound | None:
        return find_bound(self._inner)

    def encode_after(self, anchor: int, text: str, room: int | None = None) -> TokenIds:
        """The ids of a text that follows a control token.

        Some tokenizers treat the beginning of a text apart (a leading-space piece): behind the control token, the
        ids are those of the text in place.

        Args:
            anchor: the id of the control token before the text.
            text: what follows it.
            room: as for ``encode``.
        """
        marker = self._inner.id_to_token(anchor)
        ids = self.encode(f"{marker}{text}", None if room is None else room + 1)
        return ids[1:] if len(ids) and ids[0] == anchor else self.encode(text, room)

    def decode(self, ids: TokenIds) -> str:
        """The text of ids, control tokens included; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_list(ids.tolist())

    def decode_list(self, ids: list[int]) -> str:
        """The text of ids that are a plain list, as for ``decode``: for a few ids the array would cost more."""
        return self._inner.decode(ids, skip_special_tokens=False)

    def normalize(self, text: str) -> str:
        """The text as the tokenizer sees it, before it is cut (NFC for some): what decoding its ids gives back."""
        normalizer = self._inner.normalizer
        if normalizer is None or text.isascii():
            return text
        text = _replace_surrogates(text)
        if normalizer.normalize_str(_SPACED) != _SPACED:
            return text  # a normalizer that moves spaces is undone by decoding
        return normalizer.normalize_str(text)

    def find_id(self, marker: str) -> int | None:
        """The id of a piece of the vocabulary; None when there is no such piece."""
        return self._inner.token_to_id(marker)

    def get_id(self, marker: str) -> int:
        """The id of a marker.

        Raises:
            ConfigError: the vocabulary has no such piece.
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
        """Whether something faster than `tokenizers` encodes."""
        return self.encoder is not self.huggingface_encoder

    @property
    def size(self) -> int:
        """How many ids there are, markers included."""
        return self._inner.get_vocab_size()

    @property
    def id_limit(self) -> int:
        """One more than the highest id; added tokens may leave a gap behind the vocabulary."""
        return max(self.size, max(self.markers, default=0) + 1)

    @cached_property
    def markers(self) -> dict[int, str]:
        """Every added token, id to text: control tokens, and content markers such as ``<think>``."""
        return {number: token.content for number, token in self._inner.get_added_tokens_decoder().items()}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The added tokens that are flagged special: those that give a conversation its structure."""
        return frozenset(number for number, token in self._inner.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """The pieces that stand for one byte each (``<0xF0>``), in tokenizers that fall back to bytes."""
        decoder = self._inner.decoder
        if decoder is None or b"ByteFallback" not in decoder.__getstate__():
            return frozenset()
        found = (self.find_id(f"<0x{value:02X}>") for value in range(256))
        return frozenset(number for number in found if number is not None)

    def is_special(self, token: int) -> bool:
        """Whether an id is a control token."""
        return token in self.special_ids


def add_markers(tokenizer_json: bytes, markers: dict[str, bool]) -> bytes:
    """A tokenizer with more added tokens, at the end of its vocabulary.

    For stand-ins where a family's own tokenizer is not to be had, and for tests.

    Args:
        tokenizer_json: the tokenizer to start from.
        markers: text of each new token, and whether it is special; texts it already has are left alone.
    """
    document = json.loads(tokenizer_json)
    known = {token["content"] for token in document["added_tokens"]}
    taken = [*document["model"]["vocab"].values(), *(token["id"] for token in document["added_tokens"])]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    fresh = [marker for marker in markers if marker not in known]
    for number, marker in enumerate(fresh, start=max(taken) + 1):
        document["added_tokens"].append({"id": number, "content": marker, "special": markers[marker], **flags})
    return json.dumps(document).encode()


def _replace_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
