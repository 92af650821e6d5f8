"""Which engines there are, whether they are fit for turns, and how they are steered."""

from turnkeeper.fleet.connect import connect_engines
from turnkeeper.fleet.monitor import EngineWatch
from turnkeeper.fleet.pool import EnginePool, Member
from turnkeeper.fleet.update import EngineFleet, UpdateReport

__all__ = [
    "EngineFleet",
    "EnginePool",
    "EngineWatch",
    "Member",
    "UpdateReport",
    "connect_engines",
]
