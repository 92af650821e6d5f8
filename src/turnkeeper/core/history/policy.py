"""The two ways to read a forest: one live path with a small step back, or every path live.

Both attach by the same search; a policy says whether a request may go on from there, and which leaves are live.
"""

from dataclasses import dataclass
from typing import Protocol

from turnkeeper.choices import HistoryKind, OnToolsChange, OnTruncated
from turnkeeper.core.forest import Forest
from turnkeeper.core.history.attach import Attach, Query
from turnkeeper.core.history.explain import explain_attach, find_near
from turnkeeper.core.turn import Turn
from turnkeeper.errors import HistoryDivergedError
from turnkeeper.ids import TurnId
from turnkeeper.matching import Matcher


class HistoryPolicy(Protocol):
    """The rules that say which paths of a session a request may extend."""

    @property
    def kind(self) -> HistoryKind:
        """The name of the policy, as the options and the metadata have it."""
        ...

    @property
    def on_tools_change(self) -> OnToolsChange:
        """The handling of a request with other tools or template arguments than the root of its path."""
        ...

    @property
    def on_truncated(self) -> OnTruncated:
        """The handling of a request that extends a turn which ended by length."""
        ...

    def check(self, forest: Forest, attach: Attach, query: Query, matcher: Matcher, *, agent: str | None) -> None:
        """Check that the history allows a request to go on from the turn that it attaches to.

        Raises:
            HistoryDivergedError: the policy keeps another path.
        """
        ...

    def live_leaves(self, forest: Forest) -> tuple[TurnId, ...]:
        """List the leaves that are candidates for samples, in commit order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The policy under which all paths are live: a request extends a path, branches off, or starts a root."""

    on_tools_change: OnToolsChange = OnToolsChange.FORK
    on_truncated: OnTruncated = OnTruncated.CLOSE
    kind: HistoryKind = HistoryKind.TREE

    def check(self, forest: Forest, attach: Attach, query: Query, matcher: Matcher, *, agent: str | None) -> None:
        """Allow every request."""

    def live_leaves(self, forest: Forest) -> tuple[TurnId, ...]:
        """List all leaves."""
        return forest.leaves()


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """The live path is that of the last committed turn; a request may go back by a few turns, as a retry.

    ::

        live path   0 - 1 - 2 - 3          a request attaches at 1:
                        P                  d = 2, the live turns past their last common turn with P

    The turns gone back over are superseded once the retry is committed, and stay in the forest. An agent retries its
    own turns only: a request that would go back over another agent's is refused.
    """

    max_rollback: int = 1
    """The largest d that is a retry."""
    on_tools_change: OnToolsChange = OnToolsChange.KEEP
    on_truncated: OnTruncated = OnTruncated.BRIDGE
    kind: HistoryKind = HistoryKind.LINEAR

    def check(self, forest: Forest, attach: Attach, query: Query, matcher: Matcher, *, agent: str | None) -> None:
        """Refuse what goes back over more turns than may be retried, or over another agent's."""
        if attach.turn is forest.last:
            return  # the common case: nothing is gone back over
        live = _read_live_path(forest)
        beside = forest.path(None if attach.turn is None else attach.turn.id)
        common = _count_common(live, beside)
        gone_back = live[common : common + _count_sequential(live[common:], beside[common:])]
        other = next((turn for turn in gone_back if turn.agent != agent), None)
        if other is not None:
            reason = f"{_name_agent(agent)} cannot retry turn {other.id} of {_name_agent(other.agent)}"
        elif len(gone_back) > self.max_rollback:
            reason = f"at most {self.max_rollback} may be retried"
        else:
            return
        raise self._refuse(forest, attach, query, matcher, common, len(gone_back), reason)

    def live_leaves(self, forest: Forest) -> tuple[TurnId, ...]:
        """List the turn that was committed last."""
        return () if forest.last is None else (forest.last.id,)

    def _refuse(
        self, forest: Forest, attach: Attach, query: Query, matcher: Matcher, common: int, gone_back: int, reason: str
    ) -> HistoryDivergedError:
        live = _read_live_path(forest)
        near = find_near(forest, live[common - 1].id if common else None, (live[common].id,), query, matcher)
        where = near.difference.describe() if near.difference else "the request ends there"
        parent = None if attach.turn is None else attach.turn.id
        same_context = self.on_tools_change is OnToolsChange.FORK
        setting = explain_attach(forest, parent, query, matcher, same_context=same_context).would_match
        shared, asked, stored = near.start + near.matched, len(query.messages), live[-1].path_messages
        return HistoryDivergedError(
            f"the request goes back over {gone_back} turns and {reason}: "
            f"its {asked} messages share {shared} with the {stored} of the live path; {where}",
            hint=(f"{setting} would have matched; " if setting else "")
            + "side requests, sub-agents and compaction need --use-session-server v2; "
            "--session-max-rollback allows more retries",
            rollback_turns=gone_back,
            max_rollback=self.max_rollback,
            request_messages=asked,
            live_messages=stored,
            shared_messages=shared,
            difference=near.difference.to_json() if near.difference else None,
            would_match=setting,
        )


def _name_agent(agent: str | None) -> str:
    return "the main agent" if agent is None else f"sub-agent {agent}"


def _read_live_path(forest: Forest) -> tuple[Turn, ...]:
    return () if forest.last is None else forest.path(forest.last.id)


def _count_common(live: tuple[Turn, ...], other: tuple[Turn, ...]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(live, other, strict=False)) if a is not b), min(len(live), len(other))
    )


def _count_sequential(live: tuple[Turn, ...], beside: tuple[Turn, ...]) -> int:
    """Count the live turns past the fork that a request goes back over.

    A live turn whose engine call overlapped that of the attach point, or of its ancestor right behind the fork, ran
    in parallel with it: neither it nor what descends from it counts.
    """
    for count, turn in enumerate(live):
        if beside and (turn.overlaps(beside[-1]) or turn.overlaps(beside[0])):
            return count
    return len(live)
