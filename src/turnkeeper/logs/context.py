"""The ids that every line of one request carries, wherever the line is logged."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TypeAlias

Ids: TypeAlias = Mapping[str, str | int]
"""Ids by key: ``session``, ``number`` (of a turn in flight), ``request``."""

_NONE: Ids = MappingProxyType({})
_ids: ContextVar[Ids] = ContextVar("turnkeeper_log_ids", default=_NONE)


def get_ids() -> Ids:
    """Get the ids of what runs now; empty outside of any request."""
    return _ids.get()


def add_ids(**ids: str | int) -> None:
    """Add ids to what runs now, until the block of `with_ids` around it ends; tasks begun from here have them too."""
    _ids.set({**_ids.get(), **ids})


@contextmanager
def with_ids(**ids: str | int) -> Generator[None]:
    """Give what runs in the block these ids instead of the ones before; an empty id counts as none."""
    token = _ids.set({name: value for name, value in ids.items() if value != ""})
    try:
        yield
    finally:
        _ids.reset(token)
