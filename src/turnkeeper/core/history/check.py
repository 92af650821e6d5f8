"""The checks that a request must pass to go on from the turn that it attaches to.

Nothing here changes a session, and no check asks an engine.
"""

from turnkeeper.choices import OnToolsChange, OnTruncated
from turnkeeper.core.forest import Forest
from turnkeeper.core.history.attach import Attach, Query
from turnkeeper.core.history.policy import HistoryPolicy
from turnkeeper.errors import AssistantLastError, RequestError, TruncatedTurnError
from turnkeeper.matching import Matcher


def check_request(
    policy: HistoryPolicy, forest: Forest, attach: Attach, query: Query, matcher: Matcher, *, agent: str | None
) -> None:
    """Check that a request asks for a turn, and may go on from where it attaches.

    Args:
        policy: the session's.
        forest: the session's turns.
        attach: where the request attaches.
        query: the request.
        matcher: what the session matches with.
        agent: the sub-agent that asks; None for the main agent.

    Raises:
        AssistantLastError: the request ends with an assistant message.
        RequestError: it comes with other tools than its path's, and the policy refuses that.
        HistoryDivergedError: the policy does not go that far back.
        TruncatedTurnError: it extends a turn that ended by length, and the policy closes those.
    """
    _check_end(forest, attach, query)
    _check_context(policy, attach, query)
    policy.check(forest, attach, query, matcher, agent=agent)
    _check_truncated(policy, attach)


def _check_end(forest: Forest, attach: Attach, query: Query) -> None:
    """Refuse a request that asks nothing: its reply would be a turn that no agent has asked for."""
    if query.messages[-1].role != "assistant":
        return
    found = "an assistant message"
    turn = attach.turn if attach.matched == len(query.messages) else None
    if turn is not None:
        found = f"the session's own {'last ' if turn is forest.last else ''}reply (turn {turn.id})"
    raise AssistantLastError(
        f"the request ends with {found}, and replies are not continued from a given beginning",
        hint="end with a user message or tool results",
        param="messages",
        turn_id=None if turn is None else int(turn.id),
    )


def _check_context(policy: HistoryPolicy, attach: Attach, query: Query) -> None:
    changed = attach.turn is not None and attach.turn.context_digest != query.context_digest
    if changed and policy.on_tools_change is OnToolsChange.REFUSE:
        raise RequestError(
            "the request comes with other tools or template arguments than those its path was rendered with",
            hint="--on-tools-change fork starts a new root, keep goes on with the stored ids",
        )


def _check_truncated(policy: HistoryPolicy, attach: Attach) -> None:
    turn = attach.turn
    if turn is not None and turn.completion.is_truncated and policy.on_truncated is OnTruncated.CLOSE:
        raise TruncatedTurnError(
            f"the request extends turn {turn.id}, which ended by length after {len(turn.completion.ids)} tokens",
            hint='ask for the turn again, or open sessions with {"on_truncated": "bridge"} (all: --on-truncated)',
            turn_id=int(turn.id),
        )
