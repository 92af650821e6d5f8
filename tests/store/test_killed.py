"""``kill -9`` of a process at every step of a write.

1. Every turn that somebody was told is stored is there, whole and once; nothing stands between.
2. The next process has the slot at once, whatever the dead one held.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from channelkit import rows_of_turn
from storekit import StoredTalk, rows_of, session_id, storing
from turnkeeper.core import fold
from turnkeeper.core.event import TurnCommitted
from turnkeeper.store import RowReading, StoredState
from turnkeeper.store.faults import CrashPoint


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """The folders that the dead left, and what they were told."""
    root = tmp_path_factory.mktemp("killed")
    script = Path(__file__).with_name("killed.py")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, script, root], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return root, json.loads(done.stdout)


@pytest.mark.parametrize("point", list(CrashPoint))
async def test_what_was_told_is_there_once(killed: tuple[Path, dict[str, list[str]]], point: CrashPoint) -> None:
    root, told = killed
    async with storing(root / point.value) as store:
        for number in (1, 2):
            loaded, stored = await store.load(session_id(number), RowReading.READ)
            turns = [event.turn for event in loaded.events if isinstance(event, TurnCommitted)]
            texts = [turn.messages[0]["content"] for turn in turns]
            expected = [f"turn {line.split()[1]}" for line in told[point.value] if line.startswith(session_id(number))]
            assert len(expected) >= 3
            assert texts[: len(expected)] == expected
            assert texts == [f"turn {each}" for each in range(len(texts))]
            assert (loaded.torn, loaded.lost_payloads) == ("", ())
            for each, turn in enumerate(turns):
                assert rows_of_turn(turn.completion) is not None
                assert rows_of_turn(turn.completion).equals(rows_of(3, first=each))
            talk = StoredTalk(number)
            talk.session = fold(loaded.events)
            await talk.say(stored, "and on", rows=rows_of(2))
        is_deleted = store.find_state(session_id(3)) is StoredState.DELETED
        has_rows = (root / point.value / "slot-000" / "rows" / f"{session_id(3)}.rows").exists()
        assert has_rows != is_deleted
