"""Which leaves an agent went back over: replies that it asked for again, rejected, or never got.

::

    0  [system, user]            -> a0
    |- 1  + [tool]               -> a1    rolled back by 2, cause reply_left_out
    |- 2  + [tool, "try again"]  -> a2
    |  `- 3  + [tool]            -> a3    a leaf: nothing came after it
    `- 4  + [tool, "summarise"]  -> a4    a side request: its reply opens 5, so it rolls nothing back
    5  [system, user + a4]       -> a5

A leaf is rolled back by the first turn that is a sibling of it, was asked after the leaf's own reply was there, comes
from the same agent, is no side request, asks for a model that is trained, and was itself delivered or continued: a
turn that nobody received replaces nothing. Roots are siblings only where they ask the same. A leaf whose reply never
reached the agent counts as rolled back by no turn. Leaves that were asked in parallel with their twins are wanted more
than once and stay.

Knows no picker: what happens to such leaves is a picker's choice.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from turnkeeper.core import Cause, DropReason, Label, Turn
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples.side import find_side_requests
from turnkeeper.samples.view import SessionView


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """The reason why an agent did not continue from a leaf."""

    cause: Cause | DropReason
    """``undelivered``; ``superseded`` where the same was asked again; else how the later request differs."""
    by: TurnId | None = None
    """The turn that came in the leaf's place; None where the leaf was never delivered."""

    def to_json(self) -> JsonObject:
        """Return the cause, and the turn that came in the leaf's place where there is one."""
        return {"cause": str(self.cause)} | ({} if self.by is None else {"by": int(self.by)})


def find_rollbacks(view: SessionView) -> Mapping[TurnId, Rollback]:
    """Find the leaves that were rolled back, each with the reason. The time is linear in turns and opening messages."""
    continued = frozenset(turn.parent for turn in view.turns)
    received = frozenset(turn.id for turn in view.turns if turn.id in continued or turn.id not in view.undelivered)
    groups = tuple(_group_siblings(view))
    ends = (turn.id for group in groups for turn in group[1:] if turn.parent is not None)
    replacing = received - find_side_requests(view.turns, frozenset(ends) - continued) - view.untrained
    found = {turn.id: Rollback(cause=DropReason.UNDELIVERED) for turn in view.turns if turn.id not in received}
    for group in groups:
        waiting: deque[Turn] = deque()
        for turn in group:
            while turn.id in replacing and waiting and waiting[0].id < turn.begun_after:
                leaf = waiting.popleft()
                found[leaf.id] = Rollback(cause=_find_cause(view, leaf, turn), by=turn.id)
            is_leaf = turn.id in received and turn.id not in continued
            if is_leaf and view.labels[turn.id] is not Label.PARALLEL:
                waiting.append(turn)
    return found


def _group_siblings(view: SessionView) -> Iterator[Sequence[Turn]]:
    """Yield the groups of turns that may take each other's place, in commit order: turns of one parent and one agent;
    roots must ask for the same as well."""
    groups: dict[tuple[TurnId | None, str | None, bytes], list[Turn]] = {}
    for turn in view.turns:
        asking = view.askings[turn.id] if turn.parent is None else b""
        groups.setdefault((turn.parent, turn.agent, asking), []).append(turn)
    yield from groups.values()


def _find_cause(view: SessionView, leaf: Turn, later: Turn) -> Cause | DropReason:
    """Return the cause that names how a later request differs from the one that the leaf answered."""
    if view.askings[leaf.id] == view.askings[later.id]:
        return DropReason.SUPERSEDED
    # The later turn repeats another sibling than this leaf.
    return Cause.REPLY_LEFT_OUT if later.why.cause is Cause.REPEATED else later.why.cause
