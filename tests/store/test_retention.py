"""Which sessions a store keeps no longer.

1. What is older than the rule allows goes, unless it may still be asked for.
2. While there is too much, acknowledged sessions go first, then collected ones, then the rest, each the oldest first.
3. A store does what is chosen, says so where something uncollected goes, and forgets old tombstones.
"""

import logging
from pathlib import Path
from typing import Any

import pytest

from storekit import StoredTalk, create, session_id, storing
from turnkeeper.store import RetentionRules, StoredLine, StoredState, choose_removals

RULES = RetentionRules(keep_s=100.0, tombstone_s=50.0)


def line(number: int, **fields: Any) -> StoredLine:
    given: dict[str, Any] = {
        "id": session_id(number),
        "number": number,
        "state": StoredState.EXPIRED,
        "opened_at": 0.0,
        "changed_at": 0.0,
        "ended_at": None,
        "ttl_s": 10.0,
        "events": 2,
        "turns": 1,
        "sampled_tokens": 1,
        "record_bytes": 60,
        "row_bytes": 40,
        "collected_turns": 0,
        "acknowledged_turns": 0,
    }
    return StoredLine(**{**given, **fields})


AGES: dict[str, tuple[StoredLine, bool]] = {
    "old": (line(1, changed_at=99.0), True),
    "young": (line(1, changed_at=101.0), False),
    "open and asked for lately": (line(1, state=StoredState.OPEN, ttl_s=500.0), False),
    "closed and asked for lately": (line(1, state=StoredState.CLOSED, ttl_s=500.0), False),
    "closed and never asked for again": (line(1, state=StoredState.CLOSED), True),
    "open and never asked for again": (line(1, state=StoredState.OPEN), True),
    "deleted and kept": (line(1, state=StoredState.DELETED), True),
    "deleted, nothing left": (line(1, state=StoredState.DELETED, events=0), False),
}


@pytest.mark.parametrize("name", AGES)
def test_what_is_too_old_goes(name: str) -> None:
    given, goes = AGES[name]
    chosen = choose_removals([given], RULES, now=200.0, used_bytes=0)
    assert chosen == ([given] if goes else [])
    assert choose_removals([given], RULES, now=200.0, used_bytes=0, in_use={given.id}) == []


@pytest.mark.parametrize(
    ("used", "expected"), [(500, []), (501, [3]), (650, [3, 2]), (800, [3, 2, 4]), (9999, [3, 2, 4, 1])]
)
def test_what_matters_least_goes_first(used: int, expected: list[int]) -> None:
    lines = [
        line(1, changed_at=1.0),
        line(2, changed_at=3.0, collected_turns=1),
        line(3, changed_at=4.0, collected_turns=1, acknowledged_turns=1),
        line(4, changed_at=0.5),
        line(5, state=StoredState.OPEN, ttl_s=500.0),
    ]
    rules = RetentionRules(keep_s=100.0, max_bytes=500, tombstone_s=1.0)
    chosen = choose_removals(lines, rules, now=20.0, used_bytes=used)
    assert [each.number for each in chosen] == expected


async def test_a_store_removes_what_is_chosen_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collected, lost = StoredTalk(1), StoredTalk(2)
    async with storing(tmp_path) as store:
        for talk in (collected, lost):
            await talk.say(await create(store, talk))
            store.release(talk.id)
        await store.add_receipt(collected.id, "r", 1, 3.0)
        with caplog.at_level(logging.WARNING, "turnkeeper.store"):
            removed = await store.apply_retention(RULES, now=300.0)
        assert [each.id for each in removed] == [collected.id, lost.id]
        assert [record.getMessage() for record in caplog.records] == [
            f"session {lost.id} is removed from the store, and 1 of its turns were never collected"
        ]
        assert store.find_state(lost.id) is StoredState.DELETED
        measures = store.measure()
        assert (measures.removed_collected, measures.removed_uncollected) == (1, 1)
        assert await store.apply_retention(RULES, now=349.0) == []
        assert len(store.reader.list_sessions()) == 2
        await store.apply_retention(RULES, now=351.0)
        assert store.reader.list_sessions() == []
        assert store.find_state(lost.id) is None


async def test_a_session_that_is_written_is_kept(tmp_path: Path) -> None:
    talk = StoredTalk()
    async with storing(tmp_path) as store:
        await talk.say(await create(store, talk))
        assert await store.apply_retention(RULES, now=1e6) == []
