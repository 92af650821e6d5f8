"""The tables of advice.

1. Every cause, every reason and every phase has a row, and no row is left over.
2. A row names options that there are; it is the middle of a sentence.
"""

import re
from collections.abc import Mapping
from enum import StrEnum

import pytest

from turnkeeper.config.option import OPTIONS
from turnkeeper.core import Cause, DropReason, MaskReason
from turnkeeper.matching import list_looser, load_matcher
from turnkeeper.telemetry import TurnPhase
from turnkeeper.views.advice import CAUSES, DROPPED, MASKED, WAITS, Advice

TABLES: list[tuple[Mapping[str, Advice], type[StrEnum], set[str]]] = [
    (CAUSES, Cause, {Cause.NONE, Cause.FIRST}),
    (DROPPED, DropReason, set()),
    (MASKED, MaskReason, set()),
    (WAITS, TurnPhase, set()),
]
ROWS = [(f"{kind.__name__}.{name}", row) for table, kind, _ in TABLES for name, row in table.items()]


@pytest.mark.parametrize(("table", "kind", "without"), TABLES, ids=[kind.__name__ for _, kind, _ in TABLES])
def test_every_member_has_a_row(table: Mapping[str, Advice], kind: type[StrEnum], without: set[str]) -> None:
    assert set(table) == set(kind) - without


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_a_row_names_options_that_there_are(name: str, row: Advice) -> None:
    flags = {option.flag for option in OPTIONS}
    assert set(re.findall(r"--[a-z0-9-]+", f"{row.says} {row.heals}")) <= flags
    assert not row.says.endswith(".")
    assert not row.heals.endswith(".")
    assert re.sub(r"{near}", "", row.says).count("{") == 0


def test_the_settings_that_matching_names_are_options_too() -> None:
    flags = {option.flag for option in OPTIONS}
    settings = [setting for setting, _ in list_looser(load_matcher("strict"))]
    assert settings
    assert {setting.split()[0] for setting in settings} <= flags
