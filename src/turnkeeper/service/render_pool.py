"""The threads that render and encode. Few: the fast tokenizer keeps a cache for each, 17 MB at first and up to 180 MB;
and no more than can run."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_POOL = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="render")


async def run_in_pool(work: Callable[[], Result]) -> Result:
    """Do work that encodes, in one of these threads."""
    return await asyncio.get_running_loop().run_in_executor(_POOL, work)
