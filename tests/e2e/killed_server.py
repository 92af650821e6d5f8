"""Serves as ``turnkeeper serve`` does, and ends with SIGKILL at a step of a write: POINT COUNT [options of serve].

Its log is copied into the database every few records, so that a short task comes to that.
"""

import os
import signal
import sys
import time
from functools import partial

from turnkeeper.cli.main import main
from turnkeeper.store import SessionStore, writer
from turnkeeper.store.faults import CrashPoint


class Killer:
    """Kills the process when it reaches a step for the given time."""

    def __init__(self, point: CrashPoint, count: int) -> None:
        self._point = point
        self._left = count

    def __call__(self, point: CrashPoint) -> None:
        if self._point is CrashPoint.HALF_TOLD and point is CrashPoint.GROUP_GATHERED:
            time.sleep(0.3)  # so that the next group has more than one turn
        self._left -= point is self._point
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    killer = Killer(CrashPoint(sys.argv[1]), int(sys.argv[2]))
    writer.CHECKPOINT_BYTES = 1024
    SessionStore.open = partial(SessionStore.open, reach=killer)
    sys.argv[1:] = ["serve", *sys.argv[3:]]
    main()
