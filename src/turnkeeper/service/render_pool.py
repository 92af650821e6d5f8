"""The threads that render and encode. Few: the fast tokenizer keeps a cache for each, 17 MB at first and up to 180 MB;
and no more than can run."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

Result = TypeVar("Result")

_POOL = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="render")


async def run_in_pool(work: Callable[[], Result], note_wait: Callable[[float], None] | None = None) -> Result:
    """Do work that encodes, in one of these threads.

    Args:
        work: the work.
        note_wait: takes the seconds that the work waited for a thread; called in that thread.
    """
    queued = perf_counter()

    def run() -> Result:
        if note_wait is not None:
            note_wait(perf_counter() - queued)
        return work()

    return await asyncio.get_running_loop().run_in_executor(_POOL, run)
