"""The tokenizer of the embedded engine.

1. Every text survives encoding and decoding, byte for byte.
2. Every digit is a token of its own.
3. The format's markers are single tokens; those that a reader needs survive decoding.
4. The vocabulary is that of the shipped config, and the turn's end marker is its end token.
"""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from turnkeeper.tiny.checkpoint import shipped_checkpoint

DATA = shipped_checkpoint()
TOKENIZER = Tokenizer.from_file(str(DATA / "tokenizer.json"))
MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@given(st.text(max_size=60))
@settings(max_examples=150)
def test_every_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


@given(st.lists(st.sampled_from(["17", "905", " plus ", "a", " ", "3.25"]), max_size=8).map("".join))
@settings(max_examples=50)
def test_every_digit_is_a_token(text: str) -> None:
    tokens = [TOKENIZER.decode([token]) for token in TOKENIZER.encode(text).ids]
    assert [token for token in tokens if re.search(r"\d", token)] == re.findall(r"\d", text)


@pytest.mark.parametrize("marker", [*MARKERS, *TAGS])
def test_markers_are_single_tokens(marker: str) -> None:
    ids = TOKENIZER.encode(f"a{marker}b").ids
    assert ids[1] == TOKENIZER.token_to_id(marker)
    assert len(ids) == 3
    assert (marker in TOKENIZER.decode(ids)) == (marker in TAGS)


def test_the_config_agrees() -> None:
    config = json.loads((DATA / "config.json").read_text())
    assert config["vocab_size"] == TOKENIZER.get_vocab_size()
    assert config["eos_token_id"] == TOKENIZER.token_to_id("<|im_end|>")
    assert json.loads((DATA / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
