"""CPU work that grows with a payload, kept off the event loop where it is large: small sessions go on meanwhile.

Looking through the 250 MiB of rows that a turn of 128k tokens brings takes 5 ms, checking as many new ones 40. Replies
have threads of their own: collecting samples, comparing paths and moving rows to disk never hold a reply up.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

INLINE_BYTES = 65536
"""Work on payloads up to this size stays in the event loop: handing it to a thread costs more."""


_POOL = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="reply")


async def offload(work: Callable[[], Result], size_bytes: int, *, inline_bytes: int = INLINE_BYTES) -> Result:
    """Do the work, in a thread where the payload is large."""
    if size_bytes <= inline_bytes:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_POOL, work)
