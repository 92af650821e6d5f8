"""Sessions that are created, take a turn with routing rows, and are deleted, again and again, by a server with a store.

1. Behind many of them memory, descriptors, disk and row files are back where they were.

``make cycles`` plays 50,000, the test suite fewer.
"""

import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.sessions.test_memory import CONFIG, RoutingEngine
from service.sessions.test_storing import serving
from servicekit import Kit, user
from turnkeeper.store import RetentionRules, SessionStore

CYCLES = int(os.environ.get("STORE_CYCLES", "300"))
MARKS = 5
"""How often the figures are taken, at equal distances; the first time is what the last one is compared with."""

LATER_S = 1e6
"""Seconds after which a server has forgotten the ids of deleted sessions."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a process holds between two sessions."""

    blocks: int
    """Of memory that Python has allocated."""
    resident_mib: float
    descriptors: int
    disk_bytes: int
    row_files: int
    known_sessions: int


def measure(store: SessionStore, folder: Path) -> Figures:
    store.vacuum()
    store.start()  # a vacuum ends the writer
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Figures(
        blocks=sys.getallocatedblocks(),
        resident_mib=resident / (1 << 20),
        descriptors=len(os.listdir("/proc/self/fd")),
        disk_bytes=store.used_bytes,
        row_files=len(list((folder / "slot-000" / "rows").iterdir())),
        known_sessions=len(store.reader.list_sessions()),
    )


async def play_cycle(kit: Kit) -> None:
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a" * 200)])
    await turn.text()
    kit.service.delete(session_id)
    await kit.service.settle(session_id)
    kit.engine.calls.clear()
    kit.reports.clear()


async def test_deleted_sessions_leave_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"use_rollout_routing_replay": True, "pause_generation_mode": "in_place"}
    async with serving(tmp_path, engine=RoutingEngine(auto="reply"), checkpoint_config=CONFIG, **options) as kit:
        store: SessionStore = kit.service._keeper._store
        found: list[Figures] = []
        for mark in range(1, MARKS + 1):
            for _ in range(CYCLES // MARKS):
                await play_cycle(kit)
            kit.parts.registry.sweep(kit.clock.now() + LATER_S)  # ids of deleted sessions are remembered for a while
            await store.apply_retention(RetentionRules(keep_s=0.0, tombstone_s=0.0), now=kit.clock.unix() + 1.0)
            found.append(measure(store, tmp_path))
            if "STORE_CYCLES" in os.environ:
                with capsys.disabled():
                    sys.stdout.write(f"\n{mark * CYCLES // MARKS} cycles: {found[-1]}")
    first, last = found[0], found[-1]
    assert (last.descriptors, last.row_files, last.known_sessions) == (first.descriptors, 0, 0)
    assert last.disk_bytes <= first.disk_bytes + 64 * 1024
    assert last.blocks - first.blocks < CYCLES // 10 + 100
    assert last.resident_mib - first.resident_mib < 16
