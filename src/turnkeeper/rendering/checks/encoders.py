"""The check of a fast encoder: it must give the ids of `tokenizers` for many texts, each encoded twice."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from turnkeeper.core.tokens import TokenIds, count_common_prefix, freeze_ids
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import Message
from turnkeeper.rendering.checks.cases import CASES_WITHOUT_TOOLS, LOOK, IdStyle, build_two_tool_cycles
from turnkeeper.rendering.checks.texts import build_check_texts
from turnkeeper.rendering.renderer import Renderer
from turnkeeper.rendering.tokenization import Encoder, FallbackEncoder, Tokenizer

_SHOWN = 4
"""The number of ids that are shown before and behind the first that differs."""
_VOCABULARY_TEXTS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingMismatch:
    """A text for which two encoders give different ids."""

    text: str
    expected: TokenIds
    """The ids that `tokenizers` gives."""
    found: TokenIds
    """The ids that the fast encoder gives."""

    @property
    def place(self) -> int:
        """The first position that differs."""
        return count_common_prefix(self.expected, self.found)

    def describe(self, tokenizer: Tokenizer) -> str:
        """Describe the first position that differs, with the text and the ids of both encoders there."""
        place = self.place
        window = slice(max(0, place - _SHOWN), place + _SHOWN)
        expected, found = self.expected[window], self.found[window]
        return (
            f"{tokenizer.decode(expected)!r} at token {place} of {len(self.expected)} is {expected.tolist()} to "
            f"tokenizers and {found.tolist()} to the fast encoder"
        )


def check_encoder(fast: FallbackEncoder, renderer: Renderer) -> EncodingMismatch | None:
    """Compare a fast encoder with `tokenizers` on about 600,000 characters, which takes about a second of CPU.

    Args:
        fast: the encoder that is to take over; texts that it leaves to `tokenizers` are no mismatch.
        renderer: the renderer whose markers and conversations are among the texts.

    Returns:
        The first mismatch; None when the fast encoder may take over.
    """
    tokenizer = renderer.tokenizer
    texts = build_check_texts(
        markers=list(tokenizer.markers.values()),
        said=list(_render_conversations(renderer)),
        pieces=_decode_vocabulary(tokenizer),
    )
    return find_encoding_mismatch(fast, tokenizer.huggingface_encoder, (text for text in texts if text))


def find_encoding_mismatch(fast: Encoder, reference: Encoder, texts: Iterable[str]) -> EncodingMismatch | None:
    """Find the first text for which a fast encoder gives other ids.

    Each text is encoded twice, because the cache of a fast encoder must not change the ids of the second time.
    """
    for text in texts:
        expected = reference.encode(text)
        for _ in range(2):
            found = fast.encode(text)
            if len(found) != len(expected) or (found != expected).any():
                return EncodingMismatch(text=text, expected=expected, found=found)
    return None


def _decode_vocabulary(tokenizer: Tokenizer) -> list[str]:
    numbers = range(0, tokenizer.size, max(1, tokenizer.size // _VOCABULARY_TEXTS))
    return [tokenizer.decode(freeze_ids([number])) for number in numbers]


def _render_conversations(renderer: Renderer) -> Iterator[str]:
    """Render conversations with thinking, tools and results; those that the family cannot render are left out."""
    conversations: list[Sequence[Message]] = [(*case.history, *case.appended) for case in CASES_WITHOUT_TOOLS]
    conversations += [build_two_tool_cycles(style) for style in IdStyle]
    for messages in conversations:
        try:
            chat_template_kwargs = renderer.validate(messages, [LOOK], {})
            yield renderer.text_renderer.render(messages, [LOOK], chat_template_kwargs, add_generation_prompt=True)
        except RequestError:
            continue
