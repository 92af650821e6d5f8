"""Sessions as pure data: the events of a session, and the state that follows from them."""

from turnkeeper.core.accounting import DropReason, Ledger, MaskReason
from turnkeeper.core.cause import Cause, Explanation, Label
from turnkeeper.core.event import Event
from turnkeeper.core.forest import Forest
from turnkeeper.core.history import HistoryPolicy, Linear, Query, Tree, build_query, extend_query
from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.session import Session, fold
from turnkeeper.core.turn import Completion, FinishReason, Prompt, Turn, TurnRequest, VersionSpan

__all__ = [
    "Cause",
    "Completion",
    "DropReason",
    "Event",
    "Explanation",
    "FinishReason",
    "Forest",
    "HistoryPolicy",
    "Label",
    "Ledger",
    "Linear",
    "MaskReason",
    "PendingTurn",
    "Prompt",
    "Query",
    "Session",
    "Tree",
    "Turn",
    "TurnRequest",
    "VersionSpan",
    "build_query",
    "extend_query",
    "fold",
]
