"""The reference pages of options and rules.

1. The files are what the declarations render.
2. Every flag that is shown, with its variable and when to change it, every value and every rule is on its page.
"""

from pathlib import Path

import pytest

from tools.members import read_members
from tools.reference import PAGES, main, render_options, render_rules
from turnkeeper.choices import OnToolsChange
from turnkeeper.config.option import OPTIONS, SHOWN_OPTIONS
from turnkeeper.config.rules import RULES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_declarations_render(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run: make docs"


def test_every_option_is_on_its_page() -> None:
    page = render_options()
    assert [option.flag for option in SHOWN_OPTIONS if f"| `{option.flag}" not in page] == []
    assert [option.flag for option in SHOWN_OPTIONS if f"`{option.environment}` |" not in page] == []
    assert [option.flag for option in SHOWN_OPTIONS if f" {option.when_to_change} |" not in page] == []
    assert [
        value for option in SHOWN_OPTIONS if option.kind for value in option.choices if f"- `{value}`: " not in page
    ] == []
    assert [option.flag for option in OPTIONS if option.is_hidden and f"`{option.flag}" in page] == []


def test_every_rule_is_on_its_page() -> None:
    page = render_rules()
    assert [rule.name for rule in RULES if f"| `{rule.name}` |" not in page] == []
    assert [rule.name for rule in RULES if not rule.why.endswith(".") or f"| {rule.why} |" not in page] == []


def test_a_choices_lines_are_read_from_beneath_its_members() -> None:
    assert dict(read_members(OnToolsChange)) == {
        "fork": "Starts a new root.",
        "keep": "Goes on with the stored ids, and the turn is flagged.",
        "refuse": "Is a 400.",
    }


def test_the_pages_are_written_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path)])
    main()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        name: render() for name, render in PAGES.items()
    }
