"""The page on the life of a turn names functions that exist, in at most fifteen steps, and the states of the table."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from turnkeeper.service.turns import TurnState

PAGE = (Path(__file__).parent.parent / "docs" / "concepts" / "life-of-a-turn.md").read_text()
STEPS = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", PAGE, flags=re.MULTILINE)


def find(name: str) -> Any:
    """What the dotted name below the package stands for: the longest beginning that is a module, then attributes."""
    parts = ["turnkeeper", *name.split(".")]
    for size in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[size:]:
            found = getattr(found, attribute)
        return found
    raise LookupError(name)


def test_the_path_has_at_most_fifteen_numbered_steps() -> None:
    assert [int(number) for number, _ in STEPS] == list(range(1, len(STEPS) + 1))
    assert 10 <= len(STEPS) <= 15


@pytest.mark.parametrize("name", [name for _, name in STEPS])
def test_each_step_is_a_function_that_exists(name: str) -> None:
    assert callable(find(name))


def test_the_picture_shows_every_state() -> None:
    picture = PAGE.partition("```")[2].partition("```")[0]
    assert set(re.findall(r"[A-Z]{4,}", picture)) == {state.name for state in TurnState}
