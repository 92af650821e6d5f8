"""May a fast encoder take over? Only when it gives the ids of `tokenizers` on every probe, cold and warm."""

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
"""How many ids are shown before and behind the first that differs."""
_VOCABULARY_TEXTS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingMismatch:
    """A text that two encoders disagree about."""

    text: str
    expected: TokenIds
    """What `tokenizers` says."""
    found: TokenIds
    """What the fast encoder says."""

    def describe(self, tokenizer: Tokenizer) -> str:
        """The place, and the ids of both there."""
        place = count_common_prefix(self.expected, self.found)
        window = slice(max(0, place - _SHOWN), place + _SHOWN)
        expected, found = self.expected[window], self.found[window]
        return (
            f"{tokenizer.decode(expected)!r} at token {place} of {len(self.expected)} is {expected.tolist()} to "
            f"tokenizers and {found.tolist()} to the fast encoder"
        )


def check_encoder(fast: FallbackEncoder, renderer: Renderer) -> EncodingMismatch | None:
    """Compare a fast encoder with `tokenizers` on every probe; about a second of CPU.

    Args:
        fast: what would take over; a text that it leaves to `tokenizers` is no difference.
        renderer: names the markers, writes conversations in its family's format.

    Returns:
        The first difference; None when the fast encoder may take over.
    """
    tokenizer = renderer.tokenizer
    texts = build_check_texts(
        markers=list(tokenizer.markers.values()),
        said=list(_render_conversations(renderer)),
        pieces=_decode_vocabulary(tokenizer),
    )
    return find_encoding_mismatch(fast, tokenizer.huggingface_encoder, (text for text in texts if text))


def find_encoding_mismatch(fast: Encoder, reference: Encoder, texts: Iterable[str]) -> EncodingMismatch | None:
    """The first text that a fast encoder gives other ids for.

    Each text is encoded twice: what a fast encoder remembers of the first time must not change the second.
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
    """Conversations with thinking, tools and results, as the family writes them; what it cannot write is left out."""
    conversations: list[Sequence[Message]] = [(*case.history, *case.appended) for case in CASES_WITHOUT_TOOLS]
    conversations += [build_two_tool_cycles(style) for style in IdStyle]
    for messages in conversations:
        try:
            chat_template_kwargs = renderer.validate(messages, [LOOK], {})
            yield renderer.text_renderer.render(messages, [LOOK], chat_template_kwargs, add_generation_prompt=True)
        except RequestError:
            continue
