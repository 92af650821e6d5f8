"""CPU work that grows with a payload, kept off the event loop where it is large: small sessions go on meanwhile.

Looking through the 250 MiB of rows that a turn of 128k tokens brings takes 5 ms, checking as many new ones 40.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

INLINE_BYTES = 65536
"""Work on payloads up to this size stays in the event loop: handing it to a thread costs more."""


async def offload(work: Callable[[], Result], size_bytes: int, *, inline_bytes: int = INLINE_BYTES) -> Result:
    """Do the work, in a thread where the payload is large."""
    return work() if size_bytes <= inline_bytes else await asyncio.to_thread(work)
