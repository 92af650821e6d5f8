"""A disk that is full: a file system of two megabytes, where one can be mounted.

Everywhere else ``test_slot`` and ``test_crashes`` let the disk fail by a fault.

1. The turn that no longer fits fails, and health says why; what was stored is there and can be read.
2. Once there is room again, the session goes on.
"""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storekit import StoredTalk, create, rows_of, spell, storing
from turnkeeper.core.event import TurnCommitted
from turnkeeper.errors import StoreWriteError
from turnkeeper.store import RowReading


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def fill(path: Path) -> None:
    """Write a file until nothing more fits."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("what", ["rows", "records"])
async def test_a_full_disk_fails_the_turn_alone(small_disk: Path, what: str) -> None:
    talk = StoredTalk()
    async with storing(small_disk / "store") as store:
        stored = await create(store, talk)
        await talk.say(stored, "before", rows=rows_of(3))
        filler = small_disk / "filler"
        fill(filler)
        for _ in range(3):
            text, rows = ("u", rows_of(50_000)) if what == "rows" else ("x" * 200_000, None)
            pending, turn = talk.prepare(text, rows=rows)
            with pytest.raises(StoreWriteError, match=r"No space|full"):
                await stored.commit(TurnCommitted(at=1.0, turn=turn))
            talk.session.abandon(pending, at=1.0)
        assert store.describe()["failure"]
        loaded, _ = await store.load(talk.id, RowReading.READ)
        assert spell([event for event in loaded.events if isinstance(event, TurnCommitted)]) == spell(
            [event for event in talk.session.events if isinstance(event, TurnCommitted)]
        )
        filler.unlink()
        await talk.say(stored, "after", rows=rows_of(4))
        assert store.describe()["failure"] == ""
    async with storing(small_disk / "store") as store:
        loaded, _ = await store.load(talk.id, RowReading.READ)
        assert spell([event for event in loaded.events if isinstance(event, TurnCommitted)]) == spell(
            [event for event in talk.session.events if isinstance(event, TurnCommitted)]
        )
