"""The steps of a write, by name, so that a test can end the process, or fail the disk, at each of them."""

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class CrashPoint(StrEnum):
    """A step at which a process may die. Each is reached once for each group, job or payload."""

    GROUP_GATHERED = "group_gathered"
    """A group of writes was taken; nothing of it is on disk."""
    BEFORE_ROWS = "before_rows"
    """The rows of a turn are to be written."""
    ROWS_HALF_WRITTEN = "rows_half_written"
    """Half of a payload's bytes are written."""
    BETWEEN_PAYLOADS = "between_payloads"
    """One payload of a turn is written, and more follow or the turn's rows are done."""
    AFTER_ROWS = "after_rows"
    """The rows of the whole group are written."""
    AFTER_ROWS_SYNC = "after_rows_sync"
    """The rows of the whole group are on the medium, where they are synced."""
    TRANSACTION_BEGUN = "transaction_begun"
    """The transaction of the group has begun."""
    BEFORE_INSERT = "before_insert"
    """The records of a job are to be inserted."""
    AFTER_INSERT = "after_insert"
    """The records of a job are inserted, and its session's line is not up to date."""
    BEFORE_COMMIT = "before_commit"
    """Everything of the group is inserted."""
    AFTER_COMMIT = "after_commit"
    """The group is stored, and nobody was told."""
    HALF_TOLD = "half_told"
    """Some of those who wait were told."""
    BEFORE_UNLINK = "before_unlink"
    """A session's records are removed, and its row file is there."""
    AFTER_UNLINK = "after_unlink"
    """A session's row file is removed."""
    BEFORE_CHECKPOINT = "before_checkpoint"
    """The log of the database is to be copied into it."""
    AFTER_CHECKPOINT = "after_checkpoint"
    """The log of the database was copied into it."""
    BEFORE_CLOSE = "before_close"
    """Everything is written, and the database is not closed."""


Reach: TypeAlias = Callable[[CrashPoint], None]
"""Is called at each step; what it raises is what the step raises."""


def go_on(_: CrashPoint) -> None:
    """Do nothing: no fault."""
