"""Where sessions are kept so that they outlive their process; ``storing`` is imported only where there is a store."""

from turnkeeper.service.sessions.keeping.keeper import KeptSession, MemoryKeeper, SessionKeeper

__all__ = ["KeptSession", "MemoryKeeper", "SessionKeeper"]
