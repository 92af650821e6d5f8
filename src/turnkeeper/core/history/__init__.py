"""The history of a session as requests read it: where one attaches, how far back it may go, and why it is no extension.

A search over the whole forest finds the turn that a request goes on from. The policy of the session, linear or tree,
says whether the request may go on from there. An explanation says which turn a root or a branch came nearest to.
"""

from turnkeeper.core.history.attach import Attach, Query, Trail, build_query, extend_query, find_attach, read_appended
from turnkeeper.core.history.check import check_request
from turnkeeper.core.history.explain import explain_turn
from turnkeeper.core.history.policy import HistoryPolicy, Linear, Tree

__all__ = [
    "Attach",
    "HistoryPolicy",
    "Linear",
    "Query",
    "Trail",
    "Tree",
    "build_query",
    "check_request",
    "explain_turn",
    "extend_query",
    "find_attach",
    "read_appended",
]
