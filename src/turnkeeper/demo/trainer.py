"""The trainer's part: one weight update while agents play.

It trains nothing. It does to engines and session server what a trainer does between two steps.
"""

import asyncio
from pathlib import Path

from turnkeeper.choices import PauseMode
from turnkeeper.demo.stack import Stack
from turnkeeper.engines import EngineClient, EngineFleet, SystemClock, UpdateReport

DUE = 0.25
"""The share of finished rollouts at which the update begins: the others are in flight or still to come."""

NEW_VERSION = "1"


class Trainer:
    """Updates all engines once, in the run's pause mode."""

    def __init__(self, stack: Stack, mode: PauseMode, checkpoint: Path) -> None:
        """Prepare the update to ``checkpoint``."""
        self._stack = stack
        self._mode = mode
        self._checkpoint = checkpoint
        self._is_due = asyncio.Event()

    def note_progress(self, share: float) -> None:
        """Learn that this share of the rollouts has ended."""
        if share >= DUE:
            self._is_due.set()

    async def update_once(self) -> UpdateReport:
        """Wait until the update is due, then run it.

        Raises:
            EngineError: an engine refused a step.
        """
        await self._is_due.wait()
        client = EngineClient()
        try:
            fleet = EngineFleet(
                self._stack.engine_urls,
                client=client,
                clock=SystemClock(),
                mode=self._mode,
                session_servers=(self._stack.server_url,),
            )
            return await fleet.update_from_disk(str(self._checkpoint), NEW_VERSION)
        finally:
            await client.close()
