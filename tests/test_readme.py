"""The documentation's links.

1. Every relative link of a Markdown page leads to a file of the repository.
2. Every page of the documentation is reached from the README.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def _find_links(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link in LINK.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in _find_links(page) if not link.exists()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = set[Path](), {ROOT / "README.md"}
    while todo:
        page = todo.pop()
        reached.add(page)
        todo |= {link for link in _find_links(page) if link.suffix == ".md"} - reached
    assert set(PAGES) - reached == set()
