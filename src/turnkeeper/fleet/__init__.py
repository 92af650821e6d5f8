"""The fleet: the engines behind the server, their status, the check of the routes to them, and weight updates."""

from turnkeeper.fleet.calls import EngineCalls
from turnkeeper.fleet.connect import connect_engines
from turnkeeper.fleet.monitor import EngineMonitor
from turnkeeper.fleet.pool import EnginePool, PoolMember
from turnkeeper.fleet.update import EngineFleet, UpdateResult

__all__ = [
    "EngineCalls",
    "EngineFleet",
    "EngineMonitor",
    "EnginePool",
    "PoolMember",
    "UpdateResult",
    "connect_engines",
]
