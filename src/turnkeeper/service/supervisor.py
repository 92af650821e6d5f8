"""Keeps the background tasks of a server alive: a task that fails is logged, counted and started again."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from turnkeeper.clock import Clock
from turnkeeper.jsontypes import JsonObject
from turnkeeper.metrics import Metrics

logger = logging.getLogger("turnkeeper.tasks")

FIRST_PAUSE_S = 0.5
"""The wait before a task is started again after its first failure; every further failure doubles the wait."""

LONGEST_PAUSE_S = 30.0
"""The longest wait before a task is started again."""

SOUND_AFTER_S = 60.0
"""A task that ran so long without a failure counts as sound again, and its next wait is the first one."""


class TaskState(StrEnum):
    """What a background task does at the moment."""

    RUNNING = "running"
    """The task runs."""
    RESTARTING = "restarting"
    """The task failed and waits to be started again."""
    ENDED = "ended"
    """The task came to its proper end."""


@dataclass(slots=True, kw_only=True)
class SupervisedTask:
    """One named task and what became of its runs."""

    name: str
    """The name in the log, in the metrics and in ``GET /health``."""
    work: Callable[[], Coroutine[Any, Any, None]]
    """Begins a run of the task."""
    state: TaskState = TaskState.RUNNING
    """What the task does at the moment."""
    started_at: float = 0.0
    """When the newest run began."""
    failures: int = 0
    """How often the task failed."""
    failures_in_a_row: int = 0
    """How often the task failed since it was last sound."""
    error: str = ""
    """The newest failure; empty where there was none."""


class Supervisor:
    """Owns the background tasks from `start` to `close`."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        """Supervise nothing yet.

        Args:
            clock: for the waits between a failure and the next run.
            metrics: counts the failures.
        """
        self._clock = clock
        self._metrics = metrics
        self._tasks: dict[str, SupervisedTask] = {}
        self._running: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work`` in the background, and again after each failure, until `close`."""
        task = SupervisedTask(name=name, work=work, started_at=self._clock.now())
        self._tasks[name] = task
        self._running.append(asyncio.create_task(self._keep(task), name=name))

    async def close(self) -> None:
        """Cancel every task and wait until all of them are over."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    def describe(self) -> JsonObject:
        """The state, the count of failures and the newest failure of each task, by name."""
        return {
            task.name: {"state": str(task.state), "failures": task.failures, "error": task.error or None}
            for task in self._tasks.values()
        }

    def list_problems(self) -> tuple[str, ...]:
        """A sentence for each task that failed and is not sound again."""
        return tuple(
            f"the background task {task.name} failed {task.failures_in_a_row} times in a row, last with {task.error}; "
            "it is started again by itself, and the log has the traceback"
            for task in self._tasks.values()
            if task.failures_in_a_row and not self._is_sound(task)
        )

    def _is_sound(self, task: SupervisedTask) -> bool:
        if task.state is TaskState.RUNNING:
            return self._clock.now() - task.started_at >= SOUND_AFTER_S
        return task.state is TaskState.ENDED

    async def _keep(self, task: SupervisedTask) -> None:
        while True:
            task.state, task.started_at = TaskState.RUNNING, self._clock.now()
            try:
                await task.work()
            except asyncio.CancelledError as error:
                if _is_being_cancelled():
                    raise
                self._note_failure(task, error)  # something that the task waited for was cancelled, not the task
            except Exception as error:
                self._note_failure(task, error)
            else:
                task.state = TaskState.ENDED
                return
            await self._clock.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(task.failures_in_a_row - 1, 10)))

    def _note_failure(self, task: SupervisedTask, error: BaseException) -> None:
        if self._is_sound(task):
            task.failures_in_a_row = 0
        task.state = TaskState.RESTARTING
        task.failures += 1
        task.failures_in_a_row += 1
        task.error = f"{type(error).__name__}: {error}"[:500]
        self._metrics.count("turnkeeper_task_failures", task=task.name)
        logger.error("the background task %s failed and is started again", task.name, exc_info=error)


def _is_being_cancelled() -> bool:
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0
