"""Which engines there are, whether they are fit for turns, and how they are steered."""

from turnkeeper.fleet.connect import connect_engines
from turnkeeper.fleet.monitor import EngineMonitor
from turnkeeper.fleet.pool import EnginePool, PoolMember
from turnkeeper.fleet.update import EngineFleet, UpdateResult

__all__ = [
    "EngineFleet",
    "EngineMonitor",
    "EnginePool",
    "PoolMember",
    "UpdateResult",
    "connect_engines",
]
