"""Work in the background: how a part of the server begins some without knowing who looks after it.

A server hands its supervisor's `spawn` to the parts that begin tasks, so that a failure is logged, counted and shown
in ``GET /health`` even where nobody awaits the task.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class Spawn(Protocol):
    """Begins a task that runs once."""

    def __call__(self, name: str, work: Coroutine[Any, Any, Result], /) -> "asyncio.Task[Result]":
        """Begin ``work`` in the background.

        Args:
            name: what kind of work it is; all tasks of a kind have one name.
            work: what to run.

        Returns:
            The task; whoever awaits it gets its result or its error.
        """
        ...


def spawn_alone(name: str, work: Coroutine[Any, Any, Result], /) -> "asyncio.Task[Result]":
    """Begin a task that nobody looks after but its caller: for parts that are used outside of a server."""
    return asyncio.create_task(work, name=name)
