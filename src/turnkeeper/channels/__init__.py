"""Side channels: what an engine reports of each token beside its id, its log-probability and its version."""

from turnkeeper.channels.channel import (
    Asked,
    CallFacts,
    Capture,
    CaptureSettings,
    Channel,
    HeldPath,
    Items,
    Kept,
    MaskedSpan,
    PathTurn,
    SampleTensor,
    TurnPlan,
)
from turnkeeper.channels.packed import PackedIds, Payload
from turnkeeper.channels.run import ItemRun, ReadItems
from turnkeeper.channels.table import CHANNELS, ChannelTable

__all__ = [
    "CHANNELS",
    "Asked",
    "CallFacts",
    "Capture",
    "CaptureSettings",
    "Channel",
    "ChannelTable",
    "HeldPath",
    "ItemRun",
    "Items",
    "Kept",
    "MaskedSpan",
    "PackedIds",
    "PathTurn",
    "Payload",
    "ReadItems",
    "SampleTensor",
    "TurnPlan",
]
