"""How many ids a model may sample.

1. As many as its output layer has rows, which ``config.json`` counts with their padding, under either of its places.
2. Never fewer than the tokenizer has, whose added tokens may lie behind a gap.
"""

import json
from typing import Any

import pytest

from servicekit import get_renderer
from turnkeeper.rendering import Tokenizer
from turnkeeper.server.engines import find_vocabulary_size

SIZE = get_renderer().tokenizer.id_limit
CONFIGS: dict[str, tuple[Any, int]] = {
    "padded": ({"vocab_size": SIZE + 300}, SIZE + 300),
    "of the text model": ({"text_config": {"vocab_size": SIZE + 7}, "vocab_size": 32}, SIZE + 7),
    "smaller than the tokenizer": ({"vocab_size": 3}, SIZE),
    "missing": ({}, SIZE),
    "no number": ({"vocab_size": "many", "text_config": [1]}, SIZE),
    "a boolean": ({"vocab_size": True}, SIZE),
}


@pytest.mark.parametrize(("config", "size"), CONFIGS.values(), ids=CONFIGS.keys())
def test_the_vocabulary_is_that_of_the_checkpoint(config: Any, size: int) -> None:
    assert find_vocabulary_size(config, get_renderer().tokenizer) == size


def test_an_added_token_behind_a_gap_counts() -> None:
    added = {"content": "<a>", "special": True, "single_word": False, "lstrip": False, "rstrip": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 9, "normalized": False, **added}],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<a>": 9}, "unk_token": "a"},
    }
    assert Tokenizer(json.dumps(document).encode()).id_limit == 10
