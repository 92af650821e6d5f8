"""The comparison of both tokenizers, at a small scale: it finds nothing where they are equal, and can find something.

1. Equal encoders differ nowhere; what is left to `tokenizers` is counted.
2. One that is wrong somewhere is found, and the exit status is 1.
3. Random texts are the same for the same seed.
"""

from itertools import islice
from pathlib import Path

import pytest
import typer

from benchmarks import tokenizers
from benchmarks.tokenizers import Outcome, build_random, compare, examine
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.core.tokens import TokenIds, freeze_ids
from turnkeeper.rendering import Renderer, build_renderer
from turnkeeper.rendering.checks.texts import LONG_S
from turnkeeper.rendering.tokenization import FallbackEncoder
from turnkeeper.rendering.tokenization.fast_encoder import FastEncoder
from turnkeeper.tiny.checkpoint import shipped_checkpoint


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return build_renderer(read_checkpoint(shipped_checkpoint()), "qwen3")


@pytest.fixture
def fast(renderer: Renderer) -> FallbackEncoder:
    tokenizer_json = (shipped_checkpoint() / "tokenizer.json").read_bytes()
    return FallbackEncoder(FastEncoder(tokenizer_json), renderer.tokenizer.huggingface_encoder)


def test_equal_encoders_differ_nowhere(
    renderer: Renderer, fast: FallbackEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizers, "_EVERY_CODE_POINT", range(0x400))
    monkeypatch.setattr(tokenizers, "PIECES", 20)
    outcomes = list(examine(renderer, fast, texts=200))
    assert [len(outcome.differences) for outcome in outcomes] == [0, 0, 0, 0]
    assert [outcome.texts for outcome in outcomes[1:]] == [16, 200, 20]


def test_what_is_left_to_tokenizers_is_counted(renderer: Renderer, fast: FallbackEncoder) -> None:
    outcome = compare("some", ["a", "", f"a{LONG_S}", "b"], fast, renderer.tokenizer)
    assert (outcome.texts, outcome.characters, outcome.refused) == (3, 4, 1)


class Wrong:
    """Wrong about one word."""

    def __init__(self, renderer: Renderer) -> None:
        self._inner = renderer.tokenizer.huggingface_encoder

    def encode(self, text: str) -> TokenIds:
        return freeze_ids([0]) if text == "wrong" else self._inner.encode(text)


def test_a_difference_is_found(renderer: Renderer) -> None:
    fast = FallbackEncoder(Wrong(renderer), renderer.tokenizer.huggingface_encoder)
    outcome = compare("some", ["right", "wrong", "right"], fast, renderer.tokenizer)
    assert [difference.text for difference in outcome.differences] == ["wrong"]


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_difference_ends_with_1(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_equal: bool
) -> None:
    fast = FallbackEncoder(Wrong(renderer), renderer.tokenizer.huggingface_encoder)
    outcome: Outcome = compare("some", ["right" if is_equal else "wrong"], fast, renderer.tokenizer)
    monkeypatch.setattr(tokenizers, "examine", lambda renderer, fast: [outcome])
    if is_equal:
        tokenizers.main(Path(str(shipped_checkpoint())))
    else:
        with pytest.raises(typer.Exit) as caught:
            tokenizers.main(Path(str(shipped_checkpoint())))
        assert caught.value.exit_code == 1
        assert "to tokenizers and [0] to the fast encoder" in capsys.readouterr().out


def test_random_texts_are_the_same_for_the_same_seed() -> None:
    one, other, third = (list(islice(build_random(["<m>"], seed), 50)) for seed in (1, 1, 2))
    assert one == other != third
    assert any("<m>" in text for text in one)
