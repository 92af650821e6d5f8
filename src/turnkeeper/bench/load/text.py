"""Text to measure with: Python's own source files, so that no text is one token over and over."""

import random
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from turnkeeper.rendering import Tokenizer

_SAMPLE_CHARACTERS = 60_000


@cache
def list_files() -> tuple[Path, ...]:
    """List the files that text is taken from, in the order of their names."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = (path for path in folder.rglob("*.py") if not {"site-packages", "test"} & set(path.parts))
    return tuple(sorted(path for path in files if path.stat().st_size > 2_000))


class Corpus:
    """The standard library's files in a shuffled order, read one after the other, and again from the start."""

    def __init__(self, seed: int) -> None:
        """Shuffle by the seed."""
        self._files = list(list_files())
        random.Random(seed).shuffle(self._files)
        self._pieces = self._read()
        self._rest = ""

    def _read(self) -> Iterator[str]:
        while True:
            for path in self._files:
                yield path.read_text(encoding="utf-8", errors="replace")

    def take(self, characters: int) -> str:
        """Take the next characters, as many as asked for."""
        while len(self._rest) < characters:
            self._rest += next(self._pieces)
        taken, self._rest = self._rest[:characters], self._rest[characters:]
        return taken


class TokenRuler:
    """Cuts text to a number of tokens, about: by the tokenizer's mean over a sample of source."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Measure the tokenizer."""
        sample = Corpus(0).take(_SAMPLE_CHARACTERS)
        self.characters_per_token = len(sample) / len(tokenizer.encode(sample))

    def take(self, corpus: Corpus, tokens: int) -> str:
        """Text of about so many tokens."""
        return corpus.take(max(1, round(tokens * self.characters_per_token)))
