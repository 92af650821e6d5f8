"""The trainer's part: one weight update while agents play.

It trains nothing. It does to engines and session server what a trainer does between two steps.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import orjson

from turnkeeper.choices import PauseMode
from turnkeeper.demo.stack import Stack
from turnkeeper.engines import EngineClient
from turnkeeper.fleet import EngineFleet, UpdateResult

DUE = 0.25
"""The share of finished rollouts at which the update begins: the others are in flight or still to come."""

MOST_BUSY = 4
"""So many calls are running when the pause begins, fewer in a small run: it has to meet some in mid-generation."""

BUSY_TIMEOUT_S = 20.0
LOOK_INTERVAL_S = 0.01

NEW_VERSION = "1"


class DemoTrainer:
    """Updates all engines once, in the run's pause mode."""

    def __init__(self, stack: Stack, mode: PauseMode, checkpoint: Path, *, rollouts: int) -> None:
        """Prepare the update to ``checkpoint`` in a run of so many rollouts."""
        self._calls = max(1, min(MOST_BUSY, rollouts // 4))
        self._stack = stack
        self._mode = mode
        self._checkpoint = checkpoint
        self._is_due = asyncio.Event()

    def note_progress(self, share: float) -> None:
        """Learn that this share of the rollouts has ended."""
        if share >= DUE:
            self._is_due.set()

    async def update_once(self, updating: asyncio.Lock) -> UpdateResult:
        """Wait until the update is due and the engines are busy, then run it, holding the lock.

        Raises:
            EngineError: an engine refused a step.
        """
        await self._is_due.wait()
        client = EngineClient()
        try:
            async with updating:
                await wait_until_busy(client, self._stack.engine_urls, self._calls)
                fleet = EngineFleet(
                    self._stack.engine_urls,
                    client=client,
                    mode=self._mode,
                    session_servers=(self._stack.server_url,),
                )
                return await fleet.update_from_disk(str(self._checkpoint), NEW_VERSION)
        finally:
            await client.close()


async def wait_until_busy(client: EngineClient, engine_urls: Sequence[str], calls: int) -> None:
    """Wait until so many calls are running on all engines together.

    A run so small that its engines are never busy goes on after a while; its audit says what was in flight.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(BUSY_TIMEOUT_S):
            while await count_calls(client, engine_urls, "running") < calls:  # noqa: ASYNC110 - engines send no event
                await asyncio.sleep(LOOK_INTERVAL_S)


async def wait_until_idle(client: EngineClient, engine_urls: Sequence[str]) -> None:
    """Wait until no engine has a call, as engines do that learn that whoever called them is gone."""
    while await count_calls(client, engine_urls, "running", "waiting"):  # noqa: ASYNC110 - engines send no event
        await asyncio.sleep(LOOK_INTERVAL_S)


async def count_calls(client: EngineClient, engine_urls: Sequence[str], *states: str) -> int:
    """Count the calls of all engines that are in one of these states, ``running`` and ``waiting``."""
    replies = [await client.call("GET", f"{url}/server_info") for url in engine_urls]
    counts = [orjson.loads(reply.body)["internal_states"][0] for reply in replies]
    return sum(count[f"num_{state}_reqs"] for count in counts for state in states)
