"""The search for the turn that a request extends. It covers the whole forest, and serves both policies.

::

    request   s u a t | a' t' ...          turn 0 owns  s u a   (its completion is the a)
              ------- |                    turn 1 owns  t a1    child of 0; a1 is not a'
              turn 0  | appended           -> attaches at turn 0, and appends  t a' t'

The answer is the turn with the longest path of messages that the request begins with; of several the one with the
fewest renamed call ids, then the fewest other differences, both over the whole path, then the latest. A message that
is equal to the stored one costs one comparison, and takes over its digest. The last message of a turn is the place of
its reply, where a matcher may know more than the fields: in which form the turns that go on from it brought the reply.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from operator import is_
from typing import Any

from turnkeeper.core.forest import Forest
from turnkeeper.core.turn import Turn, TurnRequest
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, Message, encode_for_digest
from turnkeeper.matching import Difference, DifferenceKind, IdPairs, Matcher, NormalMessage, Rewrite, normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A request as the search sees it."""

    messages: tuple[NormalMessage, ...]
    context_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """The result of the search: the turn that a request extends."""

    turn: Turn | None
    """The turn whose path the request goes on from; None where no turn's path matches."""
    matched: int = 0
    """The number of the request's messages that are on the path of the turn."""
    accepted: tuple[Difference, ...] = ()
    """The differences that the matcher accepted in the turn's own messages."""
    has_renames: bool = False
    """True when the replay names some tool call by another id."""
    rewrite: Rewrite | None = None
    """The changes of the turn's reply in the request, where the reply is known by its call ids alone."""
    path: tuple[NormalMessage, ...] | None = None
    """The messages of the turn's path in stored form where the request repeats them without any difference; None where
    something differs, or there is no turn."""
    trail: "Trail | None" = None
    """Where the search for a request that goes on from this one may begin; None where it begins at the roots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """The path of a turn that a request followed without any difference, beside which no other path leads.

    A request that begins with the same messages attaches to this turn or to one that descends from it: all other turns
    are on the path.
    """

    turn: Turn
    messages: tuple[NormalMessage, ...]
    """The messages of the path in stored form, the turn's reply last. A request that begins with these very objects
    begins with the path."""
    pairs: IdPairs
    """The call ids that were bound on the path, and beyond ``mark`` those of later searches."""
    mark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The part of one turn's own messages that a request follows."""

    matched: int
    """The number of messages that match."""
    differences: tuple[Difference, ...]
    """The differences that were accepted where all messages match; otherwise those that were refused, which are none
    where the request ends first."""
    rewrite: Rewrite | None = None
    """The changes of the reply where all messages match, and the reply is known by its call ids alone."""


def build_query(request: TurnRequest) -> Query:
    """Reduce a request to what the search compares."""
    return Query(
        messages=tuple(normalize(message) for message in request.messages),
        context_digest=digest_context(request.tools, request.chat_template_kwargs),
    )


def extend_query(known: Query, request: TurnRequest) -> Query:
    """Reduce a request that goes on from a known one, and holds only the messages behind it."""
    return Query(
        messages=(*known.messages, *(normalize(message) for message in request.messages)),
        context_digest=digest_context(request.tools, request.chat_template_kwargs),
    )


def digest_context(tools: Iterable[JsonObject], chat_template_kwargs: Mapping[str, Any]) -> str:
    """Digest what a root is rendered with besides its messages, tools and ``chat_template_kwargs``; 32 hex digits."""
    return blake2b(encode_for_digest([list(tools), dict(chat_template_kwargs)]), digest_size=16).hexdigest()


def find_attach(
    forest: Forest, query: Query, matcher: Matcher, *, same_context: bool, trail: Trail | None = None
) -> Attach:
    """Find the deepest turn whose whole path matches the beginning of the request; of several the one that was replayed
    most exactly.

    Args:
        forest: the session's turns.
        query: the request.
        matcher: decides message by message.
        same_context: only roots rendered with the request's tools and template arguments count.
        trail: where an earlier request of the session was found to go on from.
    """
    if trail is not None and _follows(forest, query, trail, same_context=same_context):
        pairs, best_mark, best_rank = trail.pairs, trail.mark, (trail.turn.path_messages, 0, 0, int(trail.turn.id))
        best = Attach(turn=trail.turn, matched=trail.turn.path_messages)
        stack = [(child, best.matched, best_mark, 0) for child in forest.children(trail.turn.id)]
    else:
        trail, pairs, best_mark, best_rank = None, IdPairs(), 0, (0, 0, 0, 0)
        best = Attach(turn=None)
        stack = [(root, 0, 0, 0) for root in forest.children(None) if not same_context or _shares(forest, root, query)]
    while stack:
        turn_id, start, mark, differences = stack.pop()
        turn = forest.get(turn_id)
        matched = turn.path_messages
        if matched > len(query.messages):  # equal questions stand beside each other by the hundred
            continue
        pairs.undo(mark)
        walk = follow(forest, turn_id, query, start, matcher, pairs)
        if start + walk.matched < matched:
            continue
        differences += sum(each.kind is not DifferenceKind.CALL_ID for each in walk.differences)
        rank = (matched, -pairs.renamed, -differences, turn_id)
        if rank > best_rank:
            best_rank, best_mark, has_renames = rank, pairs.mark(), pairs.renamed > 0
            best = Attach(
                turn=turn, matched=matched, accepted=walk.differences, has_renames=has_renames, rewrite=walk.rewrite
            )
        stack.extend((child, matched, pairs.mark(), differences) for child in forest.children(turn_id))
    if best.turn is None or best_rank[1] or best_rank[2]:
        return best
    if best.turn.id > forest.trunk:
        path = tuple(chain.from_iterable(forest.segment(turn.id) for turn in forest.path(best.turn.id)))
        return Attach(turn=best.turn, matched=best.matched, path=path)
    pairs.undo(best_mark)
    start = 0 if trail is None else trail.turn.id + 1
    segments = [() if trail is None else trail.messages]
    segments += [forest.segment(TurnId(place)) for place in range(start, best.turn.id + 1)]
    messages = tuple(chain.from_iterable(segments))
    followed = Trail(turn=best.turn, messages=messages, pairs=pairs, mark=best_mark)
    return Attach(turn=best.turn, matched=best.matched, path=messages, trail=followed)


def _follows(forest: Forest, query: Query, trail: Trail, *, same_context: bool) -> bool:
    """Return True where a request begins with the messages of a trail, and still no path leads beside it."""
    if trail.turn.id > forest.trunk or len(query.messages) < len(trail.messages):
        return False
    return all(map(is_, trail.messages, query.messages)) and (not same_context or _shares(forest, TurnId(0), query))


def follow(forest: Forest, turn_id: TurnId, query: Query, start: int, matcher: Matcher, pairs: IdPairs) -> Walk:
    """Compare the messages of one turn, its reply last, with the request from message ``start`` on."""
    accepted: list[Difference] = []
    segment = forest.segment(turn_id)
    asked = query.messages[start : start + len(segment)]
    rewrite: Rewrite | None = None
    for offset, (stored, replayed) in enumerate(zip(segment, asked, strict=False)):
        if offset == len(segment) - 1:
            match = matcher.match_reply(stored, replayed, pairs, forest.reply_forms(turn_id))
        else:
            match = matcher.match(stored, replayed, pairs)
        if not match.is_match:
            return Walk(matched=offset, differences=tuple(each.at(start + offset) for each in match.differences))
        if match.differences:
            accepted.extend(each.at(start + offset) for each in match.differences)
        rewrite = match.rewrite
    is_whole = len(asked) == len(segment)
    return Walk(matched=len(asked), differences=tuple(accepted) if is_whole else (), rewrite=rewrite)


def _shares(forest: Forest, root: TurnId, query: Query) -> bool:
    return forest.get(root).context_digest == query.context_digest


def bind_path(forest: Forest, turn_id: TurnId | None, query: Query, matcher: Matcher, pairs: IdPairs) -> None:
    """Note in ``pairs`` the names that a request, which begins with the turn's whole path, gives to the call ids on
    that path."""
    start = 0
    for turn in forest.path(turn_id):
        follow(forest, turn.id, query, start, matcher, pairs)
        start = turn.path_messages


def read_appended(forest: Forest, attach: Attach, query: Query, matcher: Matcher) -> tuple[Message, ...]:
    """Return the messages that a request adds to the path it attaches to.

    A result names the call it answers by the id that the stored path gives the call, whatever the client calls it.
    """
    appended = tuple(each.message for each in query.messages[attach.matched :])
    if attach.turn is None or not attach.has_renames:
        return appended
    pairs = IdPairs()
    bind_path(forest, attach.turn.id, query, matcher, pairs)
    return tuple(_restore(message, pairs.stored_of) for message in appended)


def _restore(message: Message, stored_ids: Mapping[str, str]) -> Message:
    answered = message.get("tool_call_id")
    if not isinstance(answered, str) or stored_ids.get(answered, answered) == answered:
        return message
    return {**message, "tool_call_id": stored_ids[answered]}
