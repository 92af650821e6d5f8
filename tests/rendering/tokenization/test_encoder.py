"""Which library makes ids of text.

1. The fast encoder gives the ids of `tokenizers`: for any text, markers in it included, and for any suffix of a
   conversation, from any number of threads.
2. It takes over while a tokenizer is in use, and decoding stays as it was.
3. A text that it refuses, such as one with a long s, is encoded by `tokenizers`, and counted.
4. One text at a time is kept to compare the two on.
5. A tokenizer that it cannot read is refused by a typed error.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendering.strategies import conversations
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.errors import ConfigError
from turnkeeper.jsontypes import Message
from turnkeeper.rendering import Checkpoint, ParentContext, Renderer, Tokenizer, build_renderer
from turnkeeper.rendering.checks.texts import CLASSES, STEMS, SUFFIXES
from turnkeeper.rendering.tokenization import Encoder, FallbackEncoder, RefusedTextError
from turnkeeper.rendering.tokenization.fast_encoder import FastEncoder

MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|im_end|", "|im_start|>", "<", ">")


@pytest.fixture(scope="module")
def fast(qwen3_checkpoint: Checkpoint) -> Encoder:
    return FastEncoder(qwen3_checkpoint.tokenizer_json)


@pytest.fixture(scope="module")
def fast_renderer(qwen3_checkpoint: Checkpoint, fast: Encoder) -> Renderer:
    """A renderer of its own: the shared one keeps the encoder it has."""
    renderer = build_renderer(qwen3_checkpoint, "qwen3")
    renderer.tokenizer.encoder = FallbackEncoder(fast, renderer.tokenizer.huggingface_encoder)
    return renderer


def texts() -> st.SearchStrategy[str]:
    pieces = st.one_of(st.sampled_from([*CLASSES, *MARKERS, *STEMS, *SUFFIXES]), st.text(max_size=8))
    return st.lists(pieces, max_size=30).map("".join)


class RefusingEncoder:
    """Refuses every text."""

    def encode(self, text: str) -> TokenIds:
        raise RefusedTextError(text)


class LengthEncoder:
    """Says how long the text is."""

    def encode(self, text: str) -> TokenIds:
        return freeze_ids([len(text)])


@settings(max_examples=400, deadline=None)
@given(text=texts())
def test_any_text_has_the_ids_of_tokenizers(qwen3: Renderer, fast_renderer: Renderer, text: str) -> None:
    assert fast_renderer.tokenizer.encode(text).tolist() == qwen3.tokenizer.encode(text).tolist()


@settings(max_examples=60, deadline=None)
@given(talk=conversations(), text=texts())
def test_prompts_and_suffixes_have_the_ids_of_tokenizers(
    qwen3: Renderer, fast_renderer: Renderer, talk: list[Message], text: str
) -> None:
    asked: Message = {"role": "user", "content": text}
    parent = ParentContext(messages=talk[:-1], completion_ids=qwen3.tokenizer.encode("Well.<|im_end|>"))
    expected, found = (
        [renderer.render(talk, (), {}).ids.tolist(), renderer.extend(parent, [talk[-1], asked], (), {}).ids.tolist()]
        for renderer in (qwen3, fast_renderer)
    )
    assert found == expected


def test_threads_do_not_disturb_each_other(qwen3: Renderer, fast: Encoder) -> None:
    texts = ["".join(f"{word}{number}<|im_end|> \n" for word in CLASSES) * 20 for number in range(32)]
    expected = [qwen3.tokenizer.encode(text).tolist() for text in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fast.encode, texts * 4))
    assert [ids.tolist() for ids in found] == expected * 4


def test_decoding_stays_as_it_was(qwen3: Renderer, fast_renderer: Renderer) -> None:
    ids = fast_renderer.tokenizer.encode("a<|im_end|>\n😀")
    assert fast_renderer.tokenizer.decode(ids) == qwen3.tokenizer.decode(ids) == "a<|im_end|>\n😀"


@pytest.fixture
def tokenizer(qwen3_checkpoint: Checkpoint, qwen3: Renderer) -> Iterator[Tokenizer]:
    """The shared tokenizer, which gets its encoder back."""
    yield qwen3.tokenizer
    qwen3.tokenizer.encoder = qwen3.tokenizer.huggingface_encoder


def test_an_encoder_takes_over_at_once(tokenizer: Tokenizer) -> None:
    tokenizer.encoder = LengthEncoder()
    assert tokenizer.encode("abc").tolist() == [3]
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.decode(freeze_ids([64])) == "a"


def test_a_lone_surrogate_is_replaced_before_any_encoder_sees_it(fast_renderer: Renderer, qwen3: Renderer) -> None:
    text = "a\ud83d b"
    assert fast_renderer.tokenizer.encode(text).tolist() == qwen3.tokenizer.encode(text).tolist()


def test_a_refused_text_is_encoded_by_tokenizers_and_counted(tokenizer: Tokenizer) -> None:
    backed = FallbackEncoder(RefusingEncoder(), tokenizer.huggingface_encoder)
    assert backed.encode("a<|im_end|>").tolist() == [64, 151645]
    assert backed.refused == 1
    assert backed.take_kept() is None, "there is nothing to compare"


def test_one_text_at_a_time_is_kept() -> None:
    backed = FallbackEncoder(LengthEncoder(), RefusingEncoder())
    for text in ("first", "second"):
        backed.encode(text)
    kept = backed.take_kept()
    assert kept is not None
    assert (kept.text, kept.ids.tolist()) == ("first", [5])
    assert backed.take_kept() is None
    backed.encode("third")
    kept = backed.take_kept()
    assert kept is not None
    assert kept.text == "third"


@pytest.mark.parametrize("text", ["\u017f", "t'\u017f'SCRE", "a word with a long \u017f in it"])
def test_a_long_s_is_left_to_tokenizers(fast: Encoder, text: str) -> None:
    with pytest.raises(RefusedTextError):
        fast.encode(text)


@pytest.mark.parametrize("document", [b"{}", b"\xff", b'{"model": {"type": "WordPiece", "vocab": {}}}'])
def test_a_tokenizer_that_it_cannot_read_is_refused(document: bytes) -> None:
    with pytest.raises(ConfigError, match="fastokens does not support"):
        FastEncoder(document)
