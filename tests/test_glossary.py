"""docs/glossary.md uses the words of the code.

1. Each word of the first table is found in the code, with its parts joined by a space, an underscore or a hyphen.
2. Each name in the first column of the table of others' words is a name of the code.
3. No word is explained twice.
"""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
SOURCES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "src" / "turnkeeper").rglob("*.py"))]
TEXT = "\n".join(SOURCES)


def list_cells(heading: str) -> list[str]:
    """The first cells of the table under a heading row."""
    rows = PAGE.split(heading)[1].split("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].strip() for row in rows]


WORDS = [word.strip() for cell in list_cells("| word | meaning |") for word in cell.split(",")]
NAMES = [name for cell in list_cells("| in the code |") for name in re.findall(r"`(\w+)`", cell)]


def list_names() -> set[str]:
    """Every name in the code, strings and comments left out."""
    names: set[str] = set()
    for source in SOURCES:
        lines = iter(source.splitlines(keepends=True))
        found = tokenize.generate_tokens(lambda lines=lines: next(lines, ""))
        names.update(token.string for token in found if token.type == tokenize.NAME)
    return names


@pytest.mark.parametrize("word", WORDS)
def test_each_word_stands_in_the_code(word: str) -> None:
    pattern = r"[\s_-]?".join(map(re.escape, word.split()))
    assert re.search(rf"(?<![a-z]){pattern}", TEXT, flags=re.IGNORECASE)


def test_each_name_beside_the_words_of_others_is_a_name_of_the_code() -> None:
    known = list_names()
    assert [name for name in NAMES if name not in known] == []


def test_no_word_is_explained_twice() -> None:
    assert sorted(set(WORDS)) == sorted(WORDS)
    assert sorted(set(NAMES)) == sorted(NAMES)
