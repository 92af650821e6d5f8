"""The explanation of a root or a branch: which turn the request came nearest to, where it first differs, and which
setting would match.

Nothing here changes a session. An explanation is made when a turn is committed beside others, and when a request is
refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnkeeper.core.cause import EXTENDS, Cause, Explanation
from turnkeeper.core.forest import Forest
from turnkeeper.core.history.attach import Query, bind_path, find_attach, follow
from turnkeeper.ids import TurnId
from turnkeeper.matching import Difference, DifferenceKind, IdPairs, Matcher, NormalMessage, list_looser

INSTRUCTIONS = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """The part that a request follows of a turn that it might have extended, or repeated."""

    turn_id: TurnId
    """The turn whose own messages the request leaves, or ends in."""
    start: int
    """The number of messages on the turn's path before the turn's own messages."""
    matched: int
    """The number of the turn's own messages that the request follows."""
    size: int
    """The number of the turn's own messages, with that of its completion."""
    difference: Difference | None
    """The first difference that was refused; None where the request ends before one, or follows all messages."""

    @property
    def is_repeated(self) -> bool:
        """True when the request ends right before the turn's reply, so that it asks the same as the turn did."""
        return self.difference is None and self.matched == self.size - 1


def explain_attach(
    forest: Forest, parent: TurnId | None, query: Query, matcher: Matcher, *, same_context: bool
) -> Explanation:
    """Explain why a request that attaches at ``parent`` extends none of the children that ``parent`` has.

    Args:
        forest: the session's turns.
        parent: where the request attaches; None for a root.
        query: the request.
        matcher: what the session matches with.
        same_context: True when a request attaches only to turns with its own tools and template arguments.
    """
    beside = forest.children(parent)
    if not beside:
        return Explanation(cause=Cause.FIRST) if parent is None else EXTENDS
    if parent is None and same_context and (other := _find_other_context(forest, query, matcher)) is not None:
        return Explanation(cause=Cause.TOOLS_CHANGED, near=other, would_match="--on-tools-change keep")
    looser = _explain_by_matcher(forest, parent, query, matcher, same_context)
    if looser is not None:
        return looser
    near = find_near(forest, parent, beside, query, matcher)
    return Explanation(cause=_judge(forest, near, query), near=near.turn_id, difference=near.difference)


def explain_turn(
    forest: Forest, parent: TurnId | None, query: Query, matcher: Matcher, *, same_context: bool, agent: str | None
) -> Explanation:
    """Explain a turn that is about to be added: as ``explain_attach`` does, with the agent that asked for it.

    The first root of a sub-agent has the cause ``sub_agent``, whatever it begins with.

    Args:
        forest: the session's turns, without the new one.
        parent: the turn that the new one goes on from; None for a root.
        query: the request.
        matcher: what the session matches with.
        same_context: True when a request attaches only to turns with its own tools and template arguments.
        agent: the sub-agent that asked; None for the main agent.
    """
    why = explain_attach(forest, parent, query, matcher, same_context=same_context)
    if agent is None or parent is not None:
        return why
    is_start = why.cause in (Cause.SYSTEM_CHANGED, Cause.OTHER_START)
    if why.near is not None and why.cause is Cause.REPEATED:
        is_start = forest.get(why.near).agent != agent
    elif why.near is not None:
        is_start = is_start or all(turn.agent != agent for turn in forest.turns)
    return replace(why, agent=agent, cause=Cause.SUB_AGENT if is_start else why.cause)


def find_near(forest: Forest, parent: TurnId | None, beside: Sequence[TurnId], query: Query, matcher: Matcher) -> Near:
    """Find the child of ``parent`` that a request follows furthest; of several one that the request repeats, then the
    latest."""
    pairs = IdPairs()
    bind_path(forest, parent, query, matcher, pairs)
    mark = pairs.mark()
    start = 0 if parent is None else forest.get(parent).path_messages
    found: list[Near] = []
    for turn_id in reversed(beside):
        found.append(_measure(forest, turn_id, start, query, matcher, pairs))
        pairs.undo(mark)
        if found[-1].is_repeated and start + found[-1].matched == len(query.messages):
            break  # no earlier one is nearer than the latest that the whole request repeats
    return max(found, key=lambda near: (near.matched, near.is_repeated, near.turn_id))


def _measure(forest: Forest, turn_id: TurnId, start: int, query: Query, matcher: Matcher, pairs: IdPairs) -> Near:
    size = len(forest.segment(turn_id))
    walk = follow(forest, turn_id, query, start, matcher, pairs)
    refused = walk.differences[0] if walk.differences and walk.matched < size else None
    return Near(turn_id=turn_id, start=start, matched=walk.matched, size=size, difference=refused)


def _explain_by_matcher(
    forest: Forest, parent: TurnId | None, query: Query, matcher: Matcher, same_context: bool
) -> Explanation | None:
    """Find the first setting that accepts more than this matcher does, and under which the request would attach deeper
    than at ``parent``."""
    attached = 0 if parent is None else forest.get(parent).path_messages
    for setting, looser in list_looser(matcher):
        attach = find_attach(forest, query, looser, same_context=same_context)
        if attach.turn is None or attach.matched <= attached:
            continue
        near = _find_first_refused(forest, attach.turn.id, query, matcher)
        if near.difference is not None:
            return Explanation(
                cause=_judge(forest, near, query),
                near=attach.turn.id,
                difference=near.difference,
                would_match=setting,
            )
    return None


def _find_first_refused(forest: Forest, turn_id: TurnId, query: Query, matcher: Matcher) -> Near:
    """Find the turn of a path at which this matcher refuses the request."""
    pairs = IdPairs()
    start = 0
    near = _measure(forest, turn_id, start, query, matcher, pairs)
    for turn in forest.path(turn_id):
        near = _measure(forest, turn.id, start, query, matcher, pairs)
        if near.matched < near.size:
            break
        start += near.size
    return near


def _find_other_context(forest: Forest, query: Query, matcher: Matcher) -> TurnId | None:
    """Find the turn that the request would extend, or repeat, if its tools and template arguments were those of the
    root."""
    attach = find_attach(forest, query, matcher, same_context=False)
    if attach.turn is not None:
        return attach.turn.id if attach.turn.context_digest != query.context_digest else None
    near = find_near(forest, None, forest.children(None), query, matcher)
    is_other = forest.get(near.turn_id).context_digest != query.context_digest
    return near.turn_id if near.is_repeated and is_other else None


def _judge(forest: Forest, near: Near, query: Query) -> Cause:
    if near.difference is None:
        if near.is_repeated:
            return Cause.REPEATED
        return Cause.CUT_SHORT if near.matched < near.size else Cause.COMMITTED_LATER
    if near.difference.kind is DifferenceKind.OTHER:
        return Cause.MATCHER_REFUSED
    if near.difference.kind is DifferenceKind.OTHER_FORM:
        return Cause.REWRITTEN_LATER
    segment = forest.segment(near.turn_id)
    stored, replayed = segment[near.matched].role, query.messages[near.start + near.matched].role
    if near.matched == near.size - 1:
        return Cause.REPLY_REWRITTEN if replayed == "assistant" else Cause.REPLY_LEFT_OUT
    if near.start:
        return Cause.INPUT_CHANGED
    if _carries_replies(forest, query):
        return Cause.COMPACTED
    if {stored, replayed} & INSTRUCTIONS:
        return Cause.SYSTEM_CHANGED
    before = {message.role for message in segment[: near.matched]}
    return Cause.OTHER_START if before <= INSTRUCTIONS else Cause.INPUT_CHANGED


def _carries_replies(forest: Forest, query: Query) -> bool:
    """Return True when the request has a reply, in the stored form or, by its call ids, in another form."""
    given = {name for message in query.messages if message.role == "assistant" for name in _name_reply(message)}
    return bool(given) and any(
        name in given for turn in forest.turns for name in _name_reply(forest.segment(turn.id)[-1])
    )


def _name_reply(reply: NormalMessage) -> list[bytes | tuple[tuple[str, str], ...]]:
    """List what a reply is known by: a digest of all that it says, and the ids of its calls with their functions."""
    calls = tuple((call.id, call.name) for call in reply.calls)
    return [reply.digest, calls] if calls and all(call.id for call in reply.calls) else [reply.digest]
