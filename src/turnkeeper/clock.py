"""The clock as a parameter, so that waits can be tested without waiting."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol


class Clock(Protocol):
    """A clock that can be read and slept on."""

    def now(self) -> float:
        """Return the seconds of a clock that never goes back."""
        ...

    def unix(self) -> float:
        """Return the seconds since 1970, for records."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def wait_for_any(clock: Clock, timeout_s: float, *events: asyncio.Event) -> bool:
    """Wait until one of the events is set; return False when the time ran out first."""
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
