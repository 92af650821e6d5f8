"""Text to ids and back.

1. Nothing is added around a text; markers become their ids wherever they stand.
2. Decoding gives back what was encoded, control tokens included.
3. A text that no UTF-8 can hold is encoded all the same.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import normalizers
from tokenizers.models import BPE

from rendering.addedtokens import add_markers
from turnkeeper.errors import ConfigError
from turnkeeper.rendering import Checkpoint, Renderer, Tokenizer


def test_markers_in_any_text_become_their_ids(qwen3: Renderer) -> None:
    assert qwen3.tokenizer.encode("a<|im_end|><think>").tolist() == [64, 151645, 151667]


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace").decode()))
def test_decoding_gives_back_the_text(qwen3: Renderer, text: str) -> None:
    tokenizer = qwen3.tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == tokenizer.normalize(text)


def test_a_lone_surrogate_becomes_the_replacement_character(qwen3: Renderer) -> None:
    assert qwen3.tokenizer.decode(qwen3.tokenizer.encode("a\ud83d b\U0001f600")) == "a\ufffd b\U0001f600"


def test_special_and_content_markers_are_told_apart(qwen3: Renderer) -> None:
    assert qwen3.tokenizer.is_special(qwen3.tokenizer.get_id("<|im_end|>"))
    assert not qwen3.tokenizer.is_special(qwen3.tokenizer.get_id("<think>"))


def test_an_unknown_marker_names_the_option(qwen3: Renderer) -> None:
    assert qwen3.tokenizer.find_id("<|nobody|>") is None
    with pytest.raises(ConfigError, match="--tito-model"):
        qwen3.tokenizer.get_id("<|nobody|>")


def test_bytes_that_are_no_tokenizer_name_the_option() -> None:
    with pytest.raises(ConfigError, match="--hf-checkpoint"):
        Tokenizer(b"{}")


def test_added_markers_come_behind_the_vocabulary(qwen3_checkpoint: Checkpoint) -> None:
    tokenizer = Tokenizer(add_markers(qwen3_checkpoint.tokenizer_json, {"<|user|>": True, "<think>": True}))
    assert tokenizer.encode("<|user|>").tolist() == [151669]
    assert tokenizer.encode("<think>").tolist() == [151667]


def test_text_behind_a_control_token_is_cut_as_in_place() -> None:
    """A tokenizer of the SentencePiece kind puts a piece of space before a text, but not in its middle."""
    inner = HuggingFaceTokenizer(BPE(vocab={"\u2581": 0, "a": 1, "\u2581a": 2}, merges=[("\u2581", "a")]))
    inner.add_special_tokens(["</s>"])
    inner.normalizer = normalizers.Replace(" ", "\u2581")
    document = json.loads(inner.to_str())
    document["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "first",
        "split": False,
    }
    tokenizer = Tokenizer(json.dumps(document).encode())
    end = tokenizer.get_id("</s>")
    assert tokenizer.encode("a").tolist() == [2]
    assert tokenizer.encode_after(end, "a").tolist() == tokenizer.encode("</s>a").tolist()[1:] == [1]
