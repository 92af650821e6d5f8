"""Time as a value that is handed in, so that waits can be tested without waiting."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol


class Clock(Protocol):
    """Tells the time and lets it pass."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def unix(self) -> float:
        """Seconds since 1970, for records."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """Seconds on the machine's monotonic clock."""
        return time.monotonic()

    def unix(self) -> float:
        """Seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep in the event loop."""
        await asyncio.sleep(seconds)


async def wait_for_any(clock: Clock, timeout_s: float, *events: asyncio.Event) -> bool:
    """Wait until one of the events is set; False when the time ran out first."""
    if any(event.is_set() for event in events):
        return True
    if timeout_s <= 0:
        return False
    waits: list[Awaitable[object]] = [event.wait() for event in events]
    tasks = [asyncio.ensure_future(wait) for wait in (*waits, clock.sleep(timeout_s))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return any(event.is_set() for event in events)
