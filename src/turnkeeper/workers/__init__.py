"""Several processes that serve side by side."""

from turnkeeper.workers.group import read_task, run_group

__all__ = ["read_task", "run_group"]
