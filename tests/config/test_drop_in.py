"""The guide for trainers says what the code does.

1. Each row of the table agrees with what is resolved, warned about and refused.
2. The names that a namespace needs, and those of miles, are the ones that are read.
3. Each difference from the session server of miles is held by a test.
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
DIFFERENCES = [
    line.split("|")[1].strip()
    for line in GUIDE.partition("| in miles | here | why |")[2].partition("\n## ")[0].splitlines()[2:]
    if line.startswith("|")
]
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


HELD_BY = {
    "`error` is a text": ("http/test_differences.py", "test_errors_of_a_dialect_are_objects_with_a_code"),
    "a stream is one chunk": ("http/test_differences.py", "test_only_the_last_choice_of_a_stream_says_why_it_ended"),
    "extending a turn": ("http/test_differences.py", "test_extending_a_truncated_turn_is_a_400"),
    "DELETE waits": ("http/test_differences.py", "test_deleting_does_not_wait_for_a_chat"),
    "a history that is sent again": (
        "http/test_request_ends.py",
        "test_a_request_that_ends_with_an_assistant_message_is_refused_in_every_dialect",
    ),
    "a fixed template decides": ("http/test_differences.py", "test_a_developer_message_may_stand_behind_a_reply"),
    "a rejected request": ("http/test_differences.py", "test_a_retry_that_fails_destroys_nothing"),
    "counts of an engine's reply": (
        "http/test_differences.py",
        "test_counts_that_contradict_the_tokens_of_a_reply_are_a_502",
    ),
    "a reply has the engine's `meta_info`": (
        "http/test_differences.py",
        "test_tokens_of_a_reply_stand_in_the_records",
    ),
    "a record holds": ("http/test_differences.py", "test_a_record_is_made_from_what_is_stored"),
    "routing rows are kept": ("e2e/test_rows_over_http.py", "test_bad_rows_fail_the_turn_or_mask_what_follows"),
    "an empty thinking block": (
        "rendering/test_comparison.py",
        "test_an_empty_thinking_block_is_said_by_the_ids_alone",
    ),
    "the metadata of a session": ("http/test_differences.py", "test_what_the_server_knows_stands_under_one_key"),
    "every request to an engine": ("e2e/test_probing.py", "test_an_unfit_route_is_told_everywhere_and_heals"),
    "a missing `pause_generation_mode`": ("test_trainer.py", "test_a_namespace_needs_a_checkpoint_and_a_pause_mode"),
    "hooks are looked up": ("samples/hooks/test_hooks.py", "test_a_picker_is_found_by_name"),
}
"""Each row of the differences by how it begins, and the test that holds it."""


def test_each_difference_is_held_by_a_test() -> None:
    assert [row for row in DIFFERENCES if not any(row.startswith(start) for start in HELD_BY)] == []
    assert [start for start in HELD_BY if not any(row.startswith(start) for row in DIFFERENCES)] == []
    tests = Path(__file__).parents[1]
    assert [name for file, name in HELD_BY.values() if f"def {name}(" not in (tests / file).read_text()] == []
