"""docs/reference/families.md says what the rows say.

1. The tables of families and of places are those that the rows give; a failure shows the table that belongs there.
2. The page names every family in its table of formats.
"""

from pathlib import Path

from tools.families import render_families_table, render_places_table
from turnkeeper.rendering import FAMILIES
from turnkeeper.rendering.placement import REMINDER

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "families.md"


def test_the_table_is_the_one_of_the_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.split("<!-- table: families -->\n")[1].split("\n<!-- end -->")[0]
    assert table == render_families_table()


def test_the_table_of_places_is_the_one_of_the_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.split("<!-- table: places -->\n")[1].split("\n<!-- end -->")[0] == render_places_table()


def test_the_reminder_is_spelled_on_the_page_as_in_the_code() -> None:
    assert REMINDER.format(text="TEXT").replace("\n", "\\n") in PAGE.read_text(encoding="utf-8")


def test_every_familys_format_is_described() -> None:
    formats = PAGE.read_text(encoding="utf-8").split("## Thinking and tool calls")[1].split("## Second opinions")[0]
    assert [name for name in FAMILIES if f"`{name}`" not in formats] == []
