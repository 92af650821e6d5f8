"""How few tokens a text can have.

1. The bound is never more than the text has, whatever the text: runs of the longest pieces, markers, decomposed
   characters, any characters at all.
2. It grows with the text, so that what is far too long is known to be without encoding it.
3. Of a tokenizer that drops or folds text nothing is known.
"""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from conftest import find_asset
from servicekit import get_renderer
from turnkeeper.rendering import TextTooLongError, Tokenizer
from turnkeeper.rendering.tokenization import FallbackEncoder, find_bound

PIECES = st.sampled_from([" ", "\n", "-", "=", "a", "<|im_end|>", "é", "ḯ", "한", "🙂", "的", "0"])
TEXTS = st.one_of(
    st.text(max_size=300),
    st.lists(st.tuples(PIECES, st.integers(1, 200)), max_size=5).map(
        lambda runs: "".join(piece * count for piece, count in runs)
    ),
    st.text(max_size=200).map(lambda text: unicodedata.normalize("NFD", text)),
)


@pytest.fixture(scope="module", params=["qwen3", "gptoss", "embedded"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "embedded":
        return get_renderer().tokenizer
    return Tokenizer((find_asset(request.param) / "tokenizer.json").read_bytes())


@settings(deadline=None)
@given(text=TEXTS)
def test_a_text_never_has_fewer_tokens_than_the_bound(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.count_least(text) <= len(tokenizer.encode(text))


def test_the_longest_pieces_alone_reach_the_bound(tokenizer: Tokenizer) -> None:
    longest = max((tokenizer.decode_list([number]) for number in range(tokenizer.size)), key=len)
    assert tokenizer.count_least(longest) == 1
    assert tokenizer.count_least(longest * 1000) <= len(tokenizer.encode(longest * 1000))


def test_nfc_leaves_two_bytes_of_three_characters_at_least() -> None:
    composed = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    worst = min(len(each.encode()) / len(unicodedata.normalize("NFD", each)) for each in composed)
    assert worst >= 2 / 3


def test_a_text_that_is_far_too_long_is_not_encoded(tokenizer: Tokenizer) -> None:
    class NoEncoder:
        def encode(self, text: str) -> None:
            raise AssertionError("the text was encoded")

    before, tokenizer.encoder = tokenizer.encoder, NoEncoder()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        with pytest.raises(TextTooLongError) as caught:
            tokenizer.encode("x" * 200_000, 1000)
    finally:
        tokenizer.encoder = before
    assert caught.value.least_tokens > 1000
    assert len(tokenizer.encode("x y " * 100, 1000)) <= 1000


def test_a_text_that_has_no_room_is_not_compared() -> None:
    tokenizer = Tokenizer(_write(get_renderer().tokenizer))
    encoder = tokenizer.encoder = FallbackEncoder(tokenizer.huggingface_encoder, tokenizer.huggingface_encoder)
    tokenizer.encode("a b c d", 1)
    assert encoder.take_kept() is None
    tokenizer.encode("a b c d", 100)
    assert encoder.take_kept() is not None


def _write(tokenizer: Tokenizer) -> bytes:
    return tokenizer._inner.to_str().encode()  # pyright: ignore[reportPrivateUsage]


ALPHABET = {piece: number for number, piece in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def _build_plain() -> HuggingFaceTokenizer:
    built = HuggingFaceTokenizer(models.BPE(vocab=ALPHABET, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    return built


def test_a_plain_byte_level_tokenizer_is_known() -> None:
    bound = find_bound(_build_plain())
    assert bound is not None
    assert bound.longest_piece == 1


def _strip_around(built: HuggingFaceTokenizer) -> None:
    built.add_special_tokens([AddedToken("<mask>", lstrip=True)])


def _drop_spaces(built: HuggingFaceTokenizer) -> None:
    built.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )


def _split_words(built: HuggingFaceTokenizer) -> None:
    built.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore


def _strip_text(built: HuggingFaceTokenizer) -> None:
    built.normalizer = normalizers.Strip()  # pyright: ignore


def _replace_runs(built: HuggingFaceTokenizer) -> None:
    built.normalizer = normalizers.Replace("aaaa", "b")  # pyright: ignore


def _lose_a_byte(built: HuggingFaceTokenizer) -> None:
    built.model = models.BPE(vocab=dict(list(ALPHABET.items())[1:]), merges=[])  # pyright: ignore


def _fold_words(built: HuggingFaceTokenizer) -> None:
    built.model = models.WordLevel(vocab={"[UNK]": 0}, unk_token="[UNK]")  # pyright: ignore


@pytest.mark.parametrize(
    "spoil", [_strip_around, _drop_spaces, _split_words, _strip_text, _replace_runs, _lose_a_byte, _fold_words]
)
def test_nothing_is_known_of_a_tokenizer_that_drops_or_folds_text(spoil: object) -> None:
    built = _build_plain()
    spoil(built)  # pyright: ignore
    assert find_bound(built) is None
