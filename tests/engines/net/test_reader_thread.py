"""A second event loop in a thread.

1. Work runs in another thread; what it returns or raises comes back.
2. Cancelling whoever waits cancels the work.
3. The thread begins with the first work, and ends when it is closed, whatever still runs.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from turnkeeper.engines.net.reader_thread import LoopThread


@pytest.fixture
async def apart() -> AsyncGenerator[LoopThread]:
    apart = LoopThread("apart under test")
    yield apart
    await apart.close()
    assert not any(thread.name == "apart under test" for thread in threading.enumerate())


async def _name_thread() -> str:
    return threading.current_thread().name


async def _fail() -> None:
    raise LookupError("over there")


async def test_work_runs_in_one_other_thread(apart: LoopThread) -> None:
    assert not apart.is_running
    assert [await apart.run(_name_thread) for _ in range(2)] == ["apart under test"] * 2
    assert apart.is_running


async def test_what_work_raises_is_raised_here(apart: LoopThread) -> None:
    with pytest.raises(LookupError, match="over there"):
        await apart.run(_fail)


class Endless:
    """Work that ends only by being cancelled."""

    def __init__(self) -> None:
        self.began, self.was_cancelled = threading.Event(), threading.Event()

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise


async def test_cancelling_whoever_waits_cancels_the_work(apart: LoopThread) -> None:
    work = Endless()
    waiting = asyncio.create_task(apart.run(work.run))
    await asyncio.to_thread(work.began.wait, 5)
    waiting.cancel()
    assert await asyncio.to_thread(work.was_cancelled.wait, 5)
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_closing_ends_what_still_runs(apart: LoopThread) -> None:
    work = Endless()
    waiting = asyncio.create_task(apart.run(work.run))
    await asyncio.to_thread(work.began.wait, 5)
    await apart.close()
    assert work.was_cancelled.is_set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_one_that_was_never_used_closes_too() -> None:
    await LoopThread("unused").close()
