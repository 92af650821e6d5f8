"""Does the fast tokenizer give the ids of `tokenizers`? ``python -m benchmarks.tokenizers``, a minute or two.

The check that every server makes at its start, and beyond it: every code point, random texts out of everything that
the check is made of, and source files. The exit status is 1 when one text differs.
"""

import random
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import strftime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnkeeper.bench.server import find_checkpoint
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.errors import ConfigError
from turnkeeper.rendering import Renderer, Tokenizer, build_renderer
from turnkeeper.rendering.checks import EncodingMismatch, check_encoder, find_encoding_mismatch
from turnkeeper.rendering.checks.texts import CLASSES, LONG_S, STEMS, SUFFIXES, WRITTEN, build_character_texts
from turnkeeper.rendering.tokenization import FallbackEncoder

TEXTS = 60_000
PIECES = 5_000
PIECE = 4_500
_LONGEST = 3_000
_EVERY_CODE_POINT = range(0x110000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of texts of one kind."""

    name: str
    texts: int | None = None
    """How many; None where nobody counts them."""
    characters: int | None = None
    refused: int
    """How many the fast tokenizer leaves to `tokenizers`."""
    differences: tuple[EncodingMismatch, ...]


def examine(renderer: Renderer, fast: FallbackEncoder, *, texts: int = TEXTS, seed: int = 0) -> Iterator[Outcome]:
    """Compare on everything, one kind after the other."""
    tokenizer = renderer.tokenizer
    mismatch = check_encoder(fast, renderer)
    yield Outcome(
        name="a server's own check",
        refused=fast.refused,
        differences=() if mismatch is None else (mismatch,),
    )
    yield compare("every code point", build_character_texts(iter(_EVERY_CODE_POINT)), fast, tokenizer)
    markers = list(tokenizer.markers.values())[:60]
    yield compare("random texts", islice(build_random(markers, seed), texts), fast, tokenizer)
    yield compare("pieces of source files", islice(read_pieces(), PIECES), fast, tokenizer)


def compare(name: str, texts: Iterable[str], fast: FallbackEncoder, tokenizer: Tokenizer) -> Outcome:
    """Compare on texts of one kind."""
    refused, count, characters = fast.refused, 0, 0
    found: list[EncodingMismatch] = []
    for text in filter(None, texts):
        count, characters = count + 1, characters + len(text)
        mismatch = find_encoding_mismatch(fast, tokenizer.huggingface_encoder, [text])
        if mismatch is not None:
            found.append(mismatch)
    return Outcome(
        name=name, texts=count, characters=characters, refused=(fast.refused - refused) // 2, differences=tuple(found)
    )


def build_random(markers: list[str], seed: int) -> Iterator[str]:
    """Texts without end: words, markers, contractions and kinds of characters in any order, and any characters."""
    chance = random.Random(seed)
    words = [word for text in WRITTEN for word in text.split(" ")]
    pool = [*STEMS, *SUFFIXES, f"'{LONG_S}", *CLASSES, *markers, *words]
    while True:
        size = min(_LONGEST, 1 + int(chance.paretovariate(0.8)))
        kind = chance.random()
        if kind < 0.7:
            yield ("" if kind < 0.5 else " ").join(chance.choices(pool, k=size))
        elif kind < 0.85:
            yield "".join(chance.choices(CLASSES, k=size))
        else:
            yield "".join(_draw_character(chance) for _ in range(size))


def _draw_character(chance: random.Random) -> str:
    ranges = ((0, 0x80), (0, 0x3000), (0, 0xD800), (0xE000, 0x110000))
    return chr(chance.randrange(*chance.choice(ranges)))


def read_pieces() -> Iterator[str]:
    """Python's own sources in pieces as long as what a turn adds."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield from (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def main(
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Checkpoint folder; else Qwen3's where it was fetched, else the shipped one."),
    ] = None,
    tito_model: Annotated[str, typer.Option(metavar="NAME", help="Family of its chat format.")] = "qwen3",
) -> None:
    """Compare the two tokenizers; the exit status is 1 when one text differs.

    Raises:
        ConfigError: the fast tokenizer is not installed, or cannot read this checkpoint's.
    """
    try:
        from turnkeeper.rendering.tokenization.fast_encoder import (
            FastEncoder,
        )  # not at the top: the package is optional
    except ImportError as error:
        raise ConfigError("fastokens is not installed", hint="pip install turnkeeper[fast]") from error
    read = read_checkpoint(find_checkpoint(checkpoint))
    renderer = build_renderer(read, tito_model, format_time=strftime)
    fast = FallbackEncoder(FastEncoder(read.tokenizer_json), renderer.tokenizer.huggingface_encoder)
    outcomes = list(examine(renderer, fast))
    table = Table("compared", "texts", "characters", "left to tokenizers", "different", box=None, header_style="bold")
    for outcome in outcomes:
        sizes = (outcome.texts, outcome.characters, outcome.refused, len(outcome.differences))
        table.add_row(outcome.name, *("" if size is None else f"{size:,}" for size in sizes))
    console = Console()
    console.print(table)
    differences = [mismatch for outcome in outcomes for mismatch in outcome.differences]
    for mismatch in differences[:5]:
        console.print(mismatch.describe(renderer.tokenizer), markup=False, soft_wrap=True)
    if differences:
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        typer.run(main)
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from error
