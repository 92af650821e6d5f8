"""Hooks: which leaves of a tree become samples, and what becomes of those that are picked.

::

    assembled leaves --picker--> a subset --postprocessor--> finished samples

Built-in hooks are found by name, those of the user by import path.
"""

from turnkeeper.samples.hooks.hook import PICKERS, POSTPROCESSORS, Hook, Hooks, load_hooks
from turnkeeper.samples.hooks.picker import drop_retries, keep_siblings
from turnkeeper.samples.hooks.run import run_hooks

__all__ = [
    "PICKERS",
    "POSTPROCESSORS",
    "Hook",
    "Hooks",
    "drop_retries",
    "keep_siblings",
    "load_hooks",
    "run_hooks",
]
