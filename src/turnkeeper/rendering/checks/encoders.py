"""May a fast encoder take over? Only when it gives the ids of `tokenizers` on every probe, cold and warm."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from turnkeeper.core.tokens import TokenIds, count_common_prefix, freeze_ids
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import Message
from turnkeeper.rendering.checks.cases import LOOK, TALKS, IdStyle, build_two_cycles
from turnkeeper.rendering.checks.texts import build_probes
from turnkeeper.rendering.renderer import Renderer
from turnkeeper.rendering.tokenization import BackedEncoder, Encoder, Tokenizer

_SHOWN = 4
"""How many ids are shown before and behind the first that differs."""
_PIECES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
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


def check_encoder(fast: BackedEncoder, renderer: Renderer) -> Difference | None:
    """Compare a fast encoder with `tokenizers` on every probe; about a second of CPU.

    Args:
        fast: what would take over; a text that it leaves to `tokenizers` is no difference.
        renderer: names the markers, writes conversations in its family's format.

    Returns:
        The first difference; None when the fast encoder may take over.
    """
    tokenizer = renderer.tokenizer
    probes = build_probes(
        markers=list(tokenizer.markers.values()),
        said=list(_write_conversations(renderer)),
        pieces=_list_pieces(tokenizer),
    )
    return find_difference(fast, tokenizer.reference, (text for text in probes if text))


def find_difference(fast: Encoder, reference: Encoder, texts: Iterable[str]) -> Difference | None:
    """The first text that a fast encoder gives other ids for.

    Each text is encoded twice: what a fast encoder remembers of the first time must not change the second.
    """
    for text in texts:
        expected = reference.encode(text)
        for _ in range(2):
            found = fast.encode(text)
            if len(found) != len(expected) or (found != expected).any():
                return Difference(text=text, expected=expected, found=found)
    return None


def _list_pieces(tokenizer: Tokenizer) -> list[str]:
    numbers = range(0, tokenizer.size, max(1, tokenizer.size // _PIECES))
    return [tokenizer.decode(freeze_ids([number])) for number in numbers]


def _write_conversations(renderer: Renderer) -> Iterator[str]:
    """Conversations with thinking, tools and results, as the family writes them; what it cannot write is left out."""
    talks: list[Sequence[Message]] = [(*case.history, *case.appended) for case in TALKS]
    talks += [build_two_cycles(style) for style in IdStyle]
    for talk in talks:
        try:
            arguments = renderer.validate(talk, [LOOK], {})
            yield renderer.writer.write(talk, [LOOK], arguments, is_open=True)
        except RequestError:
            continue
