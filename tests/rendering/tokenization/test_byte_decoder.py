"""The decoder of byte-level vocabularies.

1. It gives the text that `tokenizers` gives, whatever the ids: bytes that are no character, markers, ids of nothing.
2. It serves where the tokenizer decodes bytes and nothing else.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer

from rendering.standins import tokenizer_json
from rendering.tokenization.sentencepiece import DECODERS, build_sentencepiece
from turnkeeper.rendering import Renderer, Tokenizer
from turnkeeper.rendering.tokenization.byte_decoder import find_byte_decoder

LIBRARY = HuggingFaceTokenizer.from_buffer(tokenizer_json())
LIBRARY.add_tokens([AddedToken("→ marker", special=True), AddedToken("<0x41>"), AddedToken("\u0120\u0100")])
DECODER = find_byte_decoder(LIBRARY)
IDS = st.integers(0, 255) | st.integers(0, LIBRARY.get_vocab_size() + 20)
"""Most of them single bytes, so that broken characters of all kinds are among them."""


@given(ids=st.lists(IDS, max_size=30))
@example(ids=list(range(LIBRARY.get_vocab_size() + 5)))
def test_the_text_is_that_of_the_library(ids: list[int]) -> None:
    assert DECODER is not None
    assert DECODER.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=False)


def test_broken_bytes_become_the_librarys_replacement_characters() -> None:
    """Both put one character for as many bytes as could have begun one."""
    assert DECODER is not None
    single = [LIBRARY.encode(char).ids for char in ("\U0001f600", "你", "é")]
    for ids in single:
        for cut in range(len(ids) + 1):
            broken = [*ids[:cut], *ids[:1], *ids[cut:]]
            assert DECODER.decode(broken) == LIBRARY.decode(broken, skip_special_tokens=False)


@given(ids=st.lists(st.integers(0, 151_700), max_size=60))
def test_the_same_holds_for_a_real_vocabulary(qwen3: Renderer, ids: list[int]) -> None:
    inner = qwen3.tokenizer._inner  # pyright: ignore[reportPrivateUsage] - the library's own decoding
    decoder = find_byte_decoder(inner)
    assert decoder is not None
    assert decoder.decode(ids) == inner.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_tokenizer_that_does_more_is_left_to_the_library(kind: str) -> None:
    tokenizer: Tokenizer = build_sentencepiece(kind)
    assert find_byte_decoder(tokenizer._inner) is None  # pyright: ignore[reportPrivateUsage]
