"""docs/reference/families.md says what the rows say.

1. The table of families is the one that the rows give; a failure shows the table that belongs there.
2. The page names every family in its table of formats.
"""

from pathlib import Path

from turnkeeper.rendering import FAMILIES
from turnkeeper.rendering.reference import write_families_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "families.md"


def test_the_table_is_the_one_of_the_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("<!-- table: families -->\n")[1].split("\n<!-- end -->")[0]
    assert table == write_families_table()


def test_every_familys_format_is_described() -> None:
    formats = PAGE.read_text(encoding="utf-8").split("## Thinking and tool calls")[1].split("## Second opinions")[0]
    assert [name for name in FAMILIES if f"`{name}`" not in formats] == []
