"""A second event loop, in a thread of its own, for reading large replies.

A reply of 250 MiB comes in a thousand chunks. Each of them, read in the loop that serves all agents, would delay every
other turn, and a turn takes a dozen rounds of the loop. Knows nothing of the work that it runs.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a thread, which runs from the first work until `close`. It is used from one event loop."""

    def __init__(self, name: str) -> None:
        """Prepare a thread that is started by the first work.

        Args:
            name: the name of the thread.
        """
        self._name = name
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    @property
    def is_running(self) -> bool:
        """True if the thread was started."""
        return self._running is not None

    async def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Do work in the thread's loop. Its exception is raised here, and cancelling this call cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._start()))

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._running is None:
            loop = uvloop.new_event_loop()
            self._running = loop, threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
            self._running[1].start()
        return self._running[0]

    async def close(self) -> None:
        """Cancel work that still runs, and end the thread; do nothing where none was started."""
        if self._running is None:
            return
        (loop, thread), self._running = self._running, None
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_cancel_others(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
