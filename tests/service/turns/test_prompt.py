"""Where a prompt is rendered.

1. Small texts are rendered at once, large ones in a thread; what is large depends on the tokenizer.
"""

import threading
from collections.abc import Iterator

import pytest

from servicekit import build_kit, get_renderer, user
from turnkeeper.core.tokens import TokenIds
from turnkeeper.rendering import Tokenizer
from turnkeeper.rendering.tokenization import Encoder
from turnkeeper.service.turns.prompt import LARGE_CHARACTERS, LARGE_CHARACTERS_FAST


class Witness:
    """Remembers the thread that asked."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner
        self.threads: list[str] = []

    def encode(self, text: str) -> TokenIds:
        self.threads.append(threading.current_thread().name)
        return self._inner.encode(text)


@pytest.fixture
def tokenizer() -> Iterator[Tokenizer]:
    """The shared tokenizer, which gets its encoder back."""
    tokenizer = get_renderer().tokenizer
    reference = tokenizer.huggingface_encoder
    yield tokenizer
    tokenizer.encoder = tokenizer.huggingface_encoder = reference


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
async def test_large_texts_are_rendered_in_a_thread(tokenizer: Tokenizer, is_fast: bool, is_large: bool) -> None:
    witness = Witness(tokenizer.huggingface_encoder)
    tokenizer.encoder = witness
    if not is_fast:
        tokenizer.huggingface_encoder = witness
    kit = build_kit()
    kit.engine.auto = "ok"
    limit = LARGE_CHARACTERS_FAST if is_fast else LARGE_CHARACTERS
    delivery = await kit.begin(kit.create(), [user("a" * (limit if is_large else limit - 100))])
    await delivery.text()
    assert witness.threads[0].startswith("render" if is_large else "MainThread")
