"""CPU work on large payloads, done in a thread, so that the event loop serves other sessions meanwhile.

A turn of 128k tokens brings 250 MiB of rows. Comparing them takes 5 ms, checking them 40 ms. Replies have threads of
their own, so that collecting samples, comparing paths and moving rows to disk never hold up a reply.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

INLINE_BYTES = 65536
"""Work on payloads up to this size is done in the event loop, since handing it to a thread costs more."""


_POOL = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="reply")


async def offload(work: Callable[[], Result], size_bytes: int, *, inline_bytes: int = INLINE_BYTES) -> Result:
    """Do work and return its result, in a thread where the payload is large."""
    if size_bytes <= inline_bytes:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_POOL, work)
