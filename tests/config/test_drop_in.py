"""The guide for trainers says what the code does.

1. Each row of the table agrees with what is resolved, warned about and refused.
2. The names that a namespace needs, and those of miles, are the ones that are read.
"""

from pathlib import Path

import pytest

from turnkeeper.config.load import load
from turnkeeper.config.namespace import ALIASES
from turnkeeper.config.resolve import resolve
from turnkeeper.config.rule import Entry
from turnkeeper.config.rules import check

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "drop-in.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in GUIDE.splitlines() if line.startswith("| v")]
REPLAY = [row for row in ROWS if row[2] == "on"]
REFUSED = [row for row in ROWS if row[6]]


@pytest.mark.parametrize("row", REPLAY, ids=lambda row: f"{row[0]}-{row[1]}")
def test_a_row_of_the_table_agrees_with_the_code(row: list[str]) -> None:
    version, mode, _, asked, _, warned, _ = row
    loaded = load(
        {
            "use_session_server": version,
            "pause_generation_mode": mode,
            "use_rollout_routing_replay": True,
            "hf_checkpoint": "/c",
            "tito_model": "qwen3",
        }
    )
    assert asked.startswith("the rows a turn adds") is resolve(loaded).use_addition_r3
    assert (warned == "yes") is bool(check(loaded, Entry.TRAINER).warnings)


def test_the_table_has_every_version_and_mode() -> None:
    assert {(row[0], row[1]) for row in REPLAY} == {
        (version, mode) for version in ("v1", "v2") for mode in ("in_place", "abort", "retract")
    }


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("flag", sorted({flag for row in REFUSED for flag in row[6].replace("`", "").split(", ")}))
def test_what_the_table_refuses_is_refused(version: str, flag: str) -> None:
    loaded = load(
        {
            "use_session_server": version,
            "pause_generation_mode": "abort",
            "hf_checkpoint": "/c",
            flag.removeprefix("--").replace("-", "_"): True,
        }
    )
    is_refused = any(version in row[0] and flag in row[6] for row in REFUSED)
    assert bool(check(loaded, Entry.TRAINER).errors) is is_refused


def test_aliases_are_in_the_guide() -> None:
    assert [alias for alias in ALIASES.values() if f"`{alias}`" not in GUIDE] == []
