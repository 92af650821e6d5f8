"""Why a turn is a root or a branch: what it came nearest to, where it first differs, and which setting would match.

Only looks. Asked when a turn is committed beside others, and when a request is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnkeeper.core.attach import Query, bind_path, find_attach, follow
from turnkeeper.core.cause import EXTENDS, Cause, Explanation
from turnkeeper.core.forest import Forest
from turnkeeper.ids import TurnId
from turnkeeper.matching import MATCHERS, Difference, DifferenceKind, IdPairs, Matcher

INSTRUCTIONS = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """The turn that a request came nearest to extending."""

    turn_id: TurnId
    start: int
    """How many messages stand on its path before its own."""
    matched: int
    """How many of its own messages the request follows."""
    difference: Difference | None
    """The first one refused; None where the request ended first, or followed to the end."""


def explain(forest: Forest, parent: TurnId | None, query: Query, matcher: Matcher) -> Explanation:
    """Why a request that attaches at ``parent`` extends none of the turns that already stand there."""
    beside = forest.children(parent)
    if not beside:
        return Explanation(cause=Cause.FIRST) if parent is None else EXTENDS
    if parent is None and (other := _find_other_context(forest, query, matcher)) is not None:
        return Explanation(cause=Cause.TOOLS_CHANGED, near=other, would_match="--on-tools-change keep")
    near = find_near(forest, parent, beside, query, matcher)
    if near.difference is None:
        return Explanation(cause=_judge_equal(forest, near, query), near=near.turn_id)
    is_unexplained = near.difference.kind is DifferenceKind.OTHER
    return Explanation(
        cause=Cause.MATCHER_REFUSED if is_unexplained else _judge(forest, parent, near, query),
        near=near.turn_id,
        difference=near.difference,
        would_match=_find_setting(forest, near.turn_id, query, matcher),
    )


def find_near(forest: Forest, parent: TurnId | None, beside: Sequence[TurnId], query: Query, matcher: Matcher) -> Near:
    """Of some children of ``parent``, the one whose own messages the request follows furthest; ties to the latest."""
    pairs = IdPairs()
    bind_path(forest, parent, query, matcher, pairs)
    mark = pairs.mark()
    start = 0 if parent is None else forest.get(parent).path_messages
    found: list[Near] = []
    for turn_id in beside:
        segment = forest.segment(turn_id)
        walk = follow(segment, query, start, matcher, pairs)
        pairs.undo(mark)
        refused = walk.differences[0] if walk.differences and walk.matched < len(segment) else None
        found.append(Near(turn_id=turn_id, start=start, matched=walk.matched, difference=refused))
    return max(found, key=lambda near: (near.matched, near.turn_id))


def _find_other_context(forest: Forest, query: Query, matcher: Matcher) -> TurnId | None:
    """The turn that the request would extend, or repeat, if its tools and template arguments were those of the root."""
    attach = find_attach(forest, query, matcher, same_context=False)
    if attach.turn is not None:
        return attach.turn.id if attach.turn.context_digest != query.context_digest else None
    near = find_near(forest, None, forest.children(None), query, matcher)
    repeats = _judge_equal(forest, near, query) is Cause.REPEATED and near.difference is None
    return near.turn_id if repeats and forest.get(near.turn_id).context_digest != query.context_digest else None


def _judge_equal(forest: Forest, near: Near, query: Query) -> Cause:
    """The cause where no field differs: the request stops somewhere along the turn's own messages."""
    size = len(forest.segment(near.turn_id))
    if near.matched == size:
        return Cause.COMMITTED_LATER
    return Cause.REPEATED if near.matched == size - 1 else Cause.CUT_SHORT


def _judge(forest: Forest, parent: TurnId | None, near: Near, query: Query) -> Cause:
    """The cause where a field differs."""
    segment = forest.segment(near.turn_id)
    replayed = query.messages[near.start + near.matched]
    if near.matched == len(segment) - 1:
        return Cause.REPLY_REWRITTEN if replayed.role == "assistant" else Cause.REPLY_LEFT_OUT
    if parent is not None:
        return Cause.INPUT_CHANGED
    if _carries_replies(forest, query):
        return Cause.COMPACTED
    if {segment[near.matched].role, replayed.role} & INSTRUCTIONS:
        return Cause.SYSTEM_CHANGED
    before = {message.role for message in segment[: near.matched]}
    return Cause.OTHER_START if before <= INSTRUCTIONS else Cause.INPUT_CHANGED


def _carries_replies(forest: Forest, query: Query) -> bool:
    given = {message.digest for message in query.messages if message.role == "assistant"}
    return bool(given) and any(forest.segment(turn.id)[-1].digest in given for turn in forest.turns)


def _find_setting(forest: Forest, near: TurnId, query: Query, matcher: Matcher) -> str:
    """The first matcher beyond this one under which the request would extend the turn."""
    names = list(MATCHERS)
    beyond = names[names.index(matcher.name) + 1 :] if matcher.name in names else names
    for name in beyond:
        if bind_path(forest, near, query, MATCHERS[name], IdPairs()):
            return f"--session-message-matcher {name}"
    return ""
