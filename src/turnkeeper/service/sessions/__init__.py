"""Sessions as the service holds them: found by id, kept within limits, read and collected."""

from turnkeeper.service.sessions.closing import close_session
from turnkeeper.service.sessions.entry import MemoryAccount, SessionEntry
from turnkeeper.service.sessions.events import EventStream
from turnkeeper.service.sessions.factory import SessionFactory
from turnkeeper.service.sessions.keeping import KeptSession, MemoryKeeper, SessionKeeper
from turnkeeper.service.sessions.keys import KeptKey, KeyRing
from turnkeeper.service.sessions.listing import MAX_PAGE, ListOrder, SessionQuery, SessionStatus
from turnkeeper.service.sessions.memory import MemoryLimiter
from turnkeeper.service.sessions.reader import SessionReader
from turnkeeper.service.sessions.registry import Registry
from turnkeeper.service.sessions.settings import NewSession, parse_length, parse_new_session

__all__ = [
    "MAX_PAGE",
    "EventStream",
    "KeptKey",
    "KeptSession",
    "KeyRing",
    "ListOrder",
    "MemoryAccount",
    "MemoryKeeper",
    "MemoryLimiter",
    "NewSession",
    "Registry",
    "SessionEntry",
    "SessionFactory",
    "SessionKeeper",
    "SessionQuery",
    "SessionReader",
    "SessionStatus",
    "close_session",
    "parse_length",
    "parse_new_session",
]
