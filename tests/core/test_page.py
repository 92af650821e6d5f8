"""docs/concepts/sessions.md and the glossary name what the code names.

1. Every cause, label and reason of the closed lists stands on the page, and the page names no other cause.
"""

import re
from pathlib import Path

from turnkeeper.core import Cause, DropReason, Label, MaskReason

PAGE = Path(__file__).parent.parent.parent / "docs" / "concepts" / "sessions.md"


def test_the_page_names_every_cause_label_and_reason() -> None:
    page = PAGE.read_text()
    names = [str(each) for closed in (Cause, Label, DropReason, MaskReason) for each in closed]
    assert [name for name in names if f"`{name}`" not in page] == ["none"]


def test_the_page_names_no_cause_that_there_is_not() -> None:
    table = PAGE.read_text().partition("| cause |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == {str(cause) for cause in Cause} - {"none"}
