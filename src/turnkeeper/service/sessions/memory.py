"""Keeps sessions under their memory limit: rows of idle sessions go to disk, then new sessions are refused."""

import asyncio
import logging
from collections.abc import Callable

from turnkeeper.errors import CapacityError
from turnkeeper.service.sessions.entry import MemoryAccount, SessionEntry
from turnkeeper.service.sessions.spill import spill
from turnkeeper.tasks import Spawn, spawn_alone

logger = logging.getLogger("turnkeeper.memory")


class MemoryLimiter:
    """Limits the memory of all sessions together."""

    def __init__(
        self,
        account: MemoryAccount,
        *,
        limit_bytes: int,
        directory: str | None,
        on_spilled: Callable[[int], None],
        spawn: Spawn = spawn_alone,
    ) -> None:
        """Limit the memory of an account.

        Args:
            account: the memory of all sessions.
            limit_bytes: what their turns may take in memory.
            directory: where rows go; None for the system's folder of temporary files.
            on_spilled: told how many bytes moved to disk.
            spawn: begins the moves in the background.
        """
        self.account = account
        self._limit_bytes = limit_bytes
        self._directory = directory
        self._on_spilled = on_spilled
        self._spawn = spawn
        self._task: asyncio.Task[None] | None = None

    def check_room(self) -> None:
        """Refuse a new session while memory is short.

        Raises:
            CapacityError: names the limit.
        """
        used = self.account.used_bytes
        if used < self._limit_bytes:
            return
        self.relieve()
        raise CapacityError(
            f"sessions take {used} bytes of memory, the limit is {self._limit_bytes}",
            hint="delete sessions when their samples are collected, or raise --max-memory-bytes",
            limit="max_memory_bytes",
        )

    def relieve(self) -> None:
        """Begin to move rows to disk if memory is short and nothing is being moved."""
        if self.account.used_bytes >= self._limit_bytes and (self._task is None or self._task.done()):
            self._task = self._spawn("memory_relief", self._relieve())

    async def settle(self) -> None:
        """Wait until what is being moved is on disk."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _relieve(self) -> None:
        """Move the rows of the sessions that were idle longest, until memory is a tenth below the limit."""
        movable = self.account.movable
        while movable and self.account.used_bytes >= self._limit_bytes * 0.9:
            entry = movable.pop(next(iter(movable)))  # one in use comes back at the end of its use
            if entry.is_idle and not await self._spill(entry):
                movable[entry.id] = entry
                return

    async def _spill(self, entry: SessionEntry) -> bool:
        """Move one session's rows; False where they cannot be written."""
        try:
            freed = await spill(entry, self._directory)
        except OSError as error:
            logger.warning("cannot move rows to disk: %s", error)
            return False
        self._on_spilled(freed)
        return True
