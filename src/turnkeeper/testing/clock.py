"""A clock that tests turn by hand: nothing that waits on it waits in earnest."""

import asyncio
import heapq


class ManualClock:
    """Stands still until `advance`. Sleepers wake in the order of their times."""

    def __init__(self, *, now: float = 1000.0, unix: float = 1_700_000_000.0) -> None:
        """Start at the given monotonic and Unix seconds."""
        self._now = now
        self._offset = unix - now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0
        self._changed = asyncio.Event()

    def now(self) -> float:
        """Seconds so far."""
        return self._now

    def unix(self) -> float:
        """Seconds since 1970."""
        return self._now + self._offset

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was advanced so far."""
        if seconds <= 0:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + seconds, self._count, waiter))
        self._changed.set()
        await waiter

    @property
    def sleepers(self) -> int:
        """The number of sleepers that wait on the clock."""
        return sum(not waiter.done() for _, _, waiter in self._sleepers)

    async def wait_for_sleepers(self, count: int) -> None:
        """Return once at least so many wait on the clock."""
        while self.sleepers < count:
            self._changed.clear()
            await self._changed.wait()

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking each sleeper at its own time, and let what they wake run."""
        target = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                self._now = max(self._now, due)
                waiter.set_result(None)
                await settle()
        self._now = target
        await settle()


async def settle(rounds: int = 20) -> None:
    """Let every task that can run do so. Enough for chains of awaits in memory, not for sockets."""
    for _ in range(rounds):
        await asyncio.sleep(0)
