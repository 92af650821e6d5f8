"""Supervises the background tasks of a server: failures are logged, counted and shown, and loops are started again.

Tasks that run once (`spawn`) share a row by their kind, such as the aborts that are sent to engines.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from turnkeeper.clock import Clock
from turnkeeper.jsontypes import JsonObject
from turnkeeper.metrics import Metrics
from turnkeeper.tasks import Result

logger = logging.getLogger("turnkeeper.tasks")

FIRST_PAUSE_S = 0.5
"""The wait before a task is started again after its first failure; every further failure doubles the wait."""

LONGEST_PAUSE_S = 30.0
"""The longest wait before a task is started again."""

SOUND_AFTER_S = 60.0
"""A task that ran so long without a failure counts as sound again, and its next wait is the first one. Tasks that run
once count as sound again so long after the newest failure of their kind."""


class TaskState(StrEnum):
    """The current state of a background task."""

    RUNNING = "running"
    """The task runs."""
    RESTARTING = "restarting"
    """The task failed and waits to be started again."""
    ENDED = "ended"
    """The task came to its end; of tasks that run once, none runs."""


@dataclass(slots=True, kw_only=True)
class SupervisedTask:
    """One named task, or all tasks of one kind that run once, with the outcome of the runs."""

    name: str
    """The name in the log, in the metrics and in ``GET /health``."""
    is_loop: bool
    """True where the task is started again after a failure."""
    state: TaskState = TaskState.RUNNING
    """The current state of the task."""
    started_at: float = 0.0
    """When the newest run began."""
    failed_at: float = 0.0
    """When the newest failure happened."""
    running: int = 0
    """How many runs there are at the moment."""
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
        self._spawned: set[asyncio.Task[Any]] = set()

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work`` in the background, and again after each failure, until `close`."""
        task = SupervisedTask(name=name, is_loop=True, started_at=self._clock.now())
        self._tasks[name] = task
        self._running.append(asyncio.create_task(self._keep(task, work), name=name))

    def spawn(self, name: str, work: Coroutine[Any, Any, Result], /) -> asyncio.Task[Result]:
        """Run ``work`` once in the background; whoever begins the task also ends it."""
        row = self._tasks.get(name)
        if row is None:
            row = self._tasks[name] = SupervisedTask(name=name, is_loop=False, state=TaskState.ENDED)
        row.running += 1
        row.state = TaskState.RUNNING
        task = asyncio.create_task(work, name=name)
        self._spawned.add(task)  # a task that nobody holds may be collected before it is done
        task.add_done_callback(partial(self._note_end, row))
        return task

    def _note_end(self, row: SupervisedTask, task: asyncio.Task[Any]) -> None:
        self._spawned.discard(task)
        row.running -= 1
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note_failure(row, error)
            logger.error("a background task of the kind %s failed", row.name, exc_info=error)
        row.state = TaskState.RUNNING if row.running else TaskState.ENDED

    async def close(self) -> None:
        """Cancel every loop and wait until all of them are over."""
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    def describe(self) -> JsonObject:
        """Describe each task by its state, the number of its failures and the newest failure."""
        return {
            task.name: {"state": str(task.state), "failures": task.failures, "error": task.error or None}
            for task in self._tasks.values()
        }

    def list_problems(self) -> tuple[str, ...]:
        """Write a sentence for each task that failed and is not sound again."""
        return tuple(
            f"the background task {task.name} failed {task.failures_in_a_row} times in a row, last with {task.error}; "
            f"{'it is started again by itself, and ' if task.is_loop else ''}the log has the traceback"
            for task in self._tasks.values()
            if task.failures_in_a_row and not self._is_sound(task)
        )

    def _is_sound(self, task: SupervisedTask) -> bool:
        if not task.is_loop:
            return self._clock.now() - task.failed_at >= SOUND_AFTER_S
        if task.state is TaskState.RUNNING:
            return self._clock.now() - task.started_at >= SOUND_AFTER_S
        return task.state is TaskState.ENDED

    async def _keep(self, task: SupervisedTask, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            task.state, task.started_at = TaskState.RUNNING, self._clock.now()
            try:
                await work()
            except asyncio.CancelledError as error:
                if _is_being_cancelled():
                    raise
                self._note_restart(task, error)  # something that the task waited for was cancelled, not the task
            except Exception as error:
                self._note_restart(task, error)
            else:
                task.state = TaskState.ENDED
                return
            await self._clock.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(task.failures_in_a_row - 1, 10)))

    def _note_restart(self, task: SupervisedTask, error: BaseException) -> None:
        self._note_failure(task, error)
        task.state = TaskState.RESTARTING
        logger.error("the background task %s failed and is started again", task.name, exc_info=error)

    def _note_failure(self, task: SupervisedTask, error: BaseException) -> None:
        if self._is_sound(task):
            task.failures_in_a_row = 0
        task.failed_at = self._clock.now()
        task.failures += 1
        task.failures_in_a_row += 1
        task.error = f"{type(error).__name__}: {error}"[:500]
        self._metrics.count("turnkeeper_task_failures", task=task.name)


def _is_being_cancelled() -> bool:
    running = asyncio.current_task()
    return running is not None and running.cancelling() > 0
