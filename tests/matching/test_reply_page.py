"""The page of matching names every kind of rewriting, and no kind that there is not."""

import re
from pathlib import Path

from turnkeeper.matching import RewriteKind

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "matching.md"


def test_the_page_names_every_kind_of_rewriting() -> None:
    table = PAGE.read_text().partition("| kind | what was changed |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE) == [str(kind) for kind in RewriteKind]
