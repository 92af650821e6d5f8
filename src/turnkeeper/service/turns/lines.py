"""What the log says at debug of how a turn comes about: what it goes on from, its prompt, why it is a branch.

A difference is named by its place and its kind; the words that differ stand in the session, and never in the log.
"""

import logging

from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.turn import Turn
from turnkeeper.ids import SessionId
from turnkeeper.logs import LogEvent
from turnkeeper.service.turns.in_flight import TurnInFlight
from turnkeeper.service.turns.plan import GenerationPlan

logger = logging.getLogger("turnkeeper.turns")


def log_matched(pending: PendingTurn) -> None:
    """Log the turn that a request goes on from, and in which form its messages came back."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            LogEvent(
                "turn_matched",
                parent=pending.parent_id,
                messages=len(pending.query.messages),
                added_messages=len(pending.appended),
                accepted=tuple(f"{each.field}:{each.kind}" for each in pending.accepted) or None,
                rewritten=None if pending.rewrite is None else pending.rewrite.kinds,
                other_tools=pending.context_changed or None,
                bridges=pending.bridges or None,
            )
        )


def log_rendered(turn: TurnInFlight, plan: GenerationPlan) -> None:
    """Log the prompt of a turn, and what the engine will be asked for."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            LogEvent(
                "prompt_rendered",
                rid=plan.engine_request.rid,
                prompt_tokens=plan.prompt_tokens,
                added_tokens=len(plan.prompt.ids),
                trimmed_tokens=plan.prompt.trim,
                **plan.engine_request.tell_asked(),
                streamed=plan.wants_text,
                rendering_s=turn.phases.times.rendering_s,
            )
        )


def log_explained(session_id: SessionId, turn: Turn) -> None:
    """Log why a turn is a branch or a root, and the setting under which it would have been none."""
    why = turn.why
    if why.near is not None and logger.isEnabledFor(logging.DEBUG):
        difference = why.difference
        logger.debug(
            LogEvent(
                "branch_explained",
                session=session_id,
                turn=turn.id,
                cause=str(why.cause),
                near=why.near,
                message=None if difference is None else difference.index,
                field=None if difference is None else difference.field,
                difference=None if difference is None else str(difference.kind),
                would_match=why.would_match or None,
            )
        )
