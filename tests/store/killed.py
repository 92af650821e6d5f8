"""Ends a process with SIGKILL at every step of a write, one child a step; prints what each child was told is stored.

Run as a script, since a process that has threads is not to be forked.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from threading import Event

from storekit import StoredTalk, create, rows_of, storing
from turnkeeper.core import DropReason
from turnkeeper.core.event import TokensDropped
from turnkeeper.store import Durability, StoreRules
from turnkeeper.store.faults import CrashPoint


class Killer:
    """Kills the process at one step, from the time on at which it is armed."""

    def __init__(self, point: CrashPoint) -> None:
        self._point = point
        self.is_armed = False
        self.gate = Event()
        """While it is closed the writer waits in front of a group, so that the next one gathers."""
        self.gate.set()
        self.reached = Event()
        """Is set where the writer waits."""

    def __call__(self, point: CrashPoint) -> None:
        if point is CrashPoint.GROUP_GATHERED:
            self.reached.set()
            self.gate.wait(10)
        if self.is_armed and point is self._point:
            os.kill(os.getpid(), signal.SIGKILL)


async def live(folder: Path, point: CrashPoint, told: int) -> None:
    """Two sessions that take turns side by side; the third is deleted once the killer is armed."""
    killer = Killer(point)
    rules = StoreRules(durability=Durability.SYNC, row_durability=Durability.SYNC)
    async with storing(folder, rules=rules, reach=killer) as store:
        talks = [StoredTalk(number) for number in (1, 2, 3)]
        sessions = [await create(store, talk) for talk in talks]
        for number in range(4):
            killer.is_armed = number == 3

            async def say(place: int, number: int = number) -> None:
                await talks[place].say(sessions[place], f"turn {number}", rows=rows_of(3, first=number))
                os.write(told, f"{talks[place].id} {number}\n".encode())

            async def open_gate() -> None:
                killer.gate.set()

            killer.gate.clear()
            killer.reached.clear()
            first = asyncio.create_task(store.acknowledge(talks[0].id, "none", 1.0))
            await asyncio.to_thread(killer.reached.wait)
            sessions[0].note(TokensDropped(at=1.0, reason=DropReason.CLIENT_GONE, sampled_tokens=number))
            await asyncio.gather(first, say(0), say(1), open_gate())
            if number == 0:
                await say(2)
        await store.delete(talks[2].id, 9.0)
        store.writer.checkpoint()  # the writer is idle
    os._exit(3)


def main(root: Path) -> None:
    """Let a child die at each step."""
    found: dict[str, list[str]] = {}
    for point in CrashPoint:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            asyncio.run(live(root / point.value, point, writing))
        os.close(writing)
        with os.fdopen(reading) as told:
            found[point.value] = told.read().splitlines()
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{point} was never reached: {status}"
        assert os.WTERMSIG(status) == signal.SIGKILL
    print(json.dumps(found))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main(Path(sys.argv[1]))
