"""Work on large payloads: in threads of its own.

1. Small payloads are worked on in the event loop, large ones in a thread that only replies use.
2. What the work raises reaches the caller.
3. Replies go on while every thread of the event loop's own pool is busy.
"""

import asyncio
import threading

import pytest

from turnkeeper.engines.offload import INLINE_BYTES, offload


@pytest.mark.parametrize(("size", "is_inline"), [(0, True), (INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
async def test_large_payloads_are_worked_on_in_a_thread_for_replies(size: int, is_inline: bool) -> None:
    thread = await offload(threading.current_thread, size)
    assert (thread is threading.current_thread()) is is_inline
    assert is_inline or thread.name.startswith("reply")


async def test_what_the_work_raises_reaches_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no rows")

    with pytest.raises(ValueError, match="no rows"):
        await offload(fail, INLINE_BYTES + 1)


async def test_replies_go_on_while_the_pool_of_the_event_loop_is_busy() -> None:
    release = threading.Event()
    busy = [asyncio.ensure_future(asyncio.to_thread(release.wait, 10)) for _ in range(64)]
    async with asyncio.timeout(5):
        assert await offload(lambda: "read", INLINE_BYTES + 1) == "read"
    release.set()
    await asyncio.gather(*busy)
