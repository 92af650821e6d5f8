"""Sampled ids that are not what the tokenizer makes of their text.

1. The ids of any text are canonical, and so is what a cut between characters or inside one leaves at their beginning.
2. Another split of the same text is not, and its first id is named; nor are a marker in ordinary tokens, bytes that are
   no character, ids of a form that is normalized away and ids that no text has.
3. Where spaces are written in another way at the beginning of a text, a piece may be written either way.
4. What the fast encoder finds is decided by `tokenizers`.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendering.standins import tokenizer as build_standin
from rendering.standins import tokenizer_json
from rendering.tokenization.sentencepiece import DECODERS, build_sentencepiece
from turnkeeper.core.tokens import TokenIds, freeze_ids, join_ids
from turnkeeper.rendering import Renderer, Tokenizer
from turnkeeper.rendering.tokenization import find_noncanonical, is_respelled


def find_tokenizer(name: str, qwen3: Renderer) -> Tokenizer:
    return {"qwen3": qwen3.tokenizer, "deepseek": build_standin()}.get(name) or build_sentencepiece(name)


def join_texts(tokenizer: Tokenizer, *texts: str) -> TokenIds:
    """The ids of each text by itself, one after the other."""
    return join_ids([tokenizer.encode(text) for text in texts])


def find_ids(tokenizer: Tokenizer, *tokens: str) -> TokenIds:
    """The ids of tokens as the vocabulary spells them."""
    return freeze_ids([tokenizer.get_id(token) for token in tokens])


NAMES = ["qwen3", "deepseek", *DECODERS]
TEXTS = [
    "Hello world",
    "  Hello\n\n world",
    "\n",
    "\n\nfoo",
    " ",
    "   a   b \n  c\t\n",
    "é\U0001f600日本語 zerø",
    "<think>\nHello</think>\n\nHello",
    "<think></think><|im_end|>",
    "Hello<|im_end|>",
    "Hello <|im_end|> Hello",
    '{"a": 1, "b": [2]}\n',
    "def f(x):\n    return 1234567\n",
    "�",
    "a� b",
    "Hello�",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_the_ids_of_a_text_and_their_beginnings_are_canonical(qwen3: Renderer, name: str, text: str) -> None:
    tokenizer = find_tokenizer(name, qwen3)
    ids = tokenizer.encode(text)
    assert [find_noncanonical(tokenizer, ids[:end]) for end in range(len(ids) + 1)] == [None] * (len(ids) + 1)


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace").decode()))
def test_the_ids_of_any_text_are_canonical(qwen3: Renderer, text: str) -> None:
    ids = qwen3.tokenizer.encode(text)
    assert find_noncanonical(qwen3.tokenizer, ids) is None
    assert not is_respelled(qwen3.tokenizer, ids, qwen3.tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("pieces", "place"),
    [
        pytest.param(("H", "el", "lo"), 0, id="a word in parts"),
        pytest.param(("Hello", " wor", "ld"), 1, id="a later word in parts"),
        pytest.param(("Hello", " ", "world"), 1, id="a space by itself"),
        pytest.param(("a", "\n", "\n", "b"), 1, id="two line breaks apart"),
        pytest.param(("    ", "    ", "x"), 0, id="an indent in halves"),
        pytest.param(("<think>", "\n", "Hel", "lo", "</think>", "<|im_end|>"), 2, id="between markers"),
        pytest.param(("ok", "<|im_end|>", "H", "ello"), 2, id="behind a stop token"),
        pytest.param(("ok", "<", "|", "im", "_end", "|", ">"), 1, id="a marker in ordinary tokens"),
        pytest.param(("<", "think", ">"), 0, id="a marker of texts in ordinary tokens"),
        pytest.param(("Hello", " wor", "ld", "<|im_end|>"), 1, id="a stop token at the end"),
    ],
)
def test_another_split_of_a_text_is_found(qwen3: Renderer, pieces: tuple[str, ...], place: int) -> None:
    ids = join_texts(qwen3.tokenizer, *pieces)
    assert find_noncanonical(qwen3.tokenizer, ids) == place
    assert is_respelled(qwen3.tokenizer, ids, qwen3.tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        pytest.param(("a", "e\u0301"), 1, id="a form that is normalized away"),
        pytest.param(("a", "\x00cut", "b"), 1, id="a part of a character in the middle"),
        pytest.param(("\x00cut", "<|im_end|>"), 0, id="a part of a character before a stop token"),
        pytest.param(("Hel", "lo", "\x00cut"), 0, id="another split before a part of a character"),
        pytest.param(("Hello", "\x00cut"), None, id="a part of a character at the end"),
        pytest.param(("\x00cut",), None, id="nothing but a part of a character"),
    ],
)
def test_parts_of_characters_and_other_forms(qwen3: Renderer, tokens: tuple[str, ...], place: int | None) -> None:
    """``\\x00cut`` stands for the first id of a character that has two or more."""
    encode = qwen3.tokenizer.encode
    spelled = {"\x00cut": encode("𝒳")[:1], "e\u0301": join_ids([encode("e"), encode("x\u0301")[1:]])}
    assert qwen3.tokenizer.decode(join_ids([encode("a"), spelled["e\u0301"]])) == "ae\u0301"
    assert len(encode("𝒳")) > 1
    ids = join_ids([spelled[token] if token in spelled else encode(token) for token in tokens])
    assert find_noncanonical(qwen3.tokenizer, ids) == place


def test_an_id_that_no_text_has_is_not_canonical(qwen3: Renderer) -> None:
    tokenizer = qwen3.tokenizer
    assert find_noncanonical(tokenizer, join_ids([tokenizer.encode("a"), freeze_ids([tokenizer.id_limit + 5])])) == 1
    assert find_noncanonical(tokenizer, freeze_ids([tokenizer.id_limit + 5])) == 0


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        pytest.param(("▁Hello", "▁world"), None, id="as a text begins"),
        pytest.param(("Hello", "▁world"), None, id="as it stands behind a line break"),
        pytest.param(("<think>", "\n", "Hello"), None, id="behind a marker of texts"),
        pytest.param(("<think>", "▁Hello", "</think>", "Hello"), None, id="both ways in one completion"),
        pytest.param(("Hello", "<|im_end|>"), None, id="before a stop token"),
        pytest.param(("▁", "Hello"), 0, id="a space by itself"),
        pytest.param(("▁Hello", "▁", "world"), 1, id="a later space by itself"),
        pytest.param(("<think>", "▁", "Hello", "</think>"), 1, id="between markers"),
        pytest.param(("▁Hello", "<0x61>"), 1, id="a byte for a letter that has a piece"),
        pytest.param(("▁Hello", "<0xF0>", "<0x9F>"), None, id="a part of a character at the end"),
        pytest.param(("<0xC3>", "<0xA9>", "<0xF0>"), 0, id="bytes for a character that has a piece"),
    ],
)
@pytest.mark.parametrize("name", ["llama", "metaspace", "metaspace first"])
def test_spaces_of_the_beginning_are_written_either_way(name: str, tokens: tuple[str, ...], place: int | None) -> None:
    tokenizer = build_sentencepiece(name)
    assert find_noncanonical(tokenizer, find_ids(tokenizer, *tokens)) == place


def test_only_some_tokenizers_move_spaces(qwen3: Renderer) -> None:
    moving = {name for name in NAMES if find_tokenizer(name, qwen3).moves_spaces}
    assert moving == {"llama", "metaspace", "metaspace first"}


class OtherEncoder:
    """An encoder that gets every text wrong."""

    def encode(self, text: str) -> TokenIds:
        return freeze_ids([len(text)])


def test_a_fast_encoder_that_differs_finds_what_tokenizers_then_clears() -> None:
    tokenizer = Tokenizer(tokenizer_json())
    ids = tokenizer.encode("Hello world")
    tokenizer.encoder = OtherEncoder()
    assert is_respelled(tokenizer, ids, tokenizer.decode(ids))
    assert find_noncanonical(tokenizer, ids) is None
