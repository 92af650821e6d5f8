"""A stream of ids as segments of text and markers; the result does not depend on how the ids are cut into chunks.

Text is given out up to the point where a later id could still change it, since a character may straddle tokens and a
token may straddle characters. A marker that is one token of the vocabulary counts only as that token: its letters
sampled piece by piece are text. A marker that the vocabulary lacks is found in the text.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from turnkeeper.rendering.tokenization.detokenizer import Detokenizer
from turnkeeper.rendering.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One marker, or the text between two markers."""

    text: str
    is_marker: bool = False


class SegmentStream:
    """Splits a stream of ids into segments."""

    def __init__(self, tokenizer: Tokenizer, markers: Iterable[str]) -> None:
        """Begin a stream.

        Args:
            tokenizer: the tokenizer that decodes the ids.
            markers: the texts at which the stream is split.
        """
        self._detokenizer = Detokenizer(tokenizer)
        wanted = [marker for marker in dict.fromkeys(markers) if marker]
        added = {text: token for token, text in tokenizer.markers.items()}
        self._ids = {added[marker]: marker for marker in wanted if marker in added}
        self._spelled = [marker for marker in wanted if marker not in added]
        self._text = ""

    def feed(self, ids: Iterable[int]) -> Iterator[Segment]:
        """Yield the segments that these ids complete."""
        run: list[int] = []
        for token in ids:
            marker = self._ids.get(token)
            if marker is None:
                run.append(token)
                continue
            self._text += self._detokenizer.feed(run)
            run.clear()
            yield from self.finish()
            self._detokenizer.pass_over(token)
            yield Segment(text=marker, is_marker=True)
        if run:
            self._text += self._detokenizer.feed(run)
            yield from self._take_text(is_last=False)

    def finish(self) -> Iterator[Segment]:
        """Yield the text that was held back for an unfinished character or marker."""
        self._text += self._detokenizer.flush()
        yield from self._take_text(is_last=True)

    def _take_text(self, *, is_last: bool) -> Iterator[Segment]:
        """Yield the text so far, split at markers that the vocabulary lacks, except an end that may become a marker."""
        while found := self._find_spelled():
            marker, position = found
            if position:
                yield Segment(text=self._text[:position])
            yield Segment(text=marker, is_marker=True)
            self._text = self._text[position + len(marker) :]
        kept = 0 if is_last else max((count_overlap(self._text, marker) for marker in self._spelled), default=0)
        ready = self._text[: len(self._text) - kept]
        self._text = self._text[len(self._text) - kept :]
        if ready:
            yield Segment(text=ready)

    def _find_spelled(self) -> tuple[str, int] | None:
        found = [(marker, self._text.find(marker)) for marker in self._spelled]
        return min((pair for pair in found if pair[1] >= 0), key=lambda pair: pair[1], default=None)


def count_overlap(text: str, marker: str) -> int:
    """Count the trailing characters of a text that are a beginning of the marker, but not the whole marker."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0
