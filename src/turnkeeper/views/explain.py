"""Why a session forked, what that cost in tokens and which setting heals it; where its other tokens went. Pure.

::

    Turn 2 starts a root of its own, and does not go on from turn 1: the reply of turn 1 came back changed. Message 2,
    tool_calls[0].arguments: stored '{"x": 1}', replayed '{"x":1}'.
      cost: 96 prompt tokens were rendered and read anew, where 80 stored ones would have been kept; ...
      heals: --session-message-matcher loose_tool_call
"""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from turnkeeper.core import Cause
from turnkeeper.jsontypes import JsonObject
from turnkeeper.views.advice import CAUSES, DROPPED, MASKED, WAITS, Advice
from turnkeeper.views.session import ShownSession, ShownTurn
from turnkeeper.views.words import count, format_seconds

_NOT_FORKS = ("", Cause.NONE, Cause.FIRST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkCost:
    """What a fork cost, in tokens."""

    rendered: int
    """Prompt tokens that were rendered for the turn, in place of tokens that were stored."""
    cached: int
    """Prompt tokens of the whole prompt that the engine took from its prefix cache."""
    kept: int
    """Stored tokens behind the fork that the turn could have gone on from; 0 where it is another conversation."""
    repeated: int
    """Tokens before the fork, which stand in the samples of both sides."""
    untrained: Mapping[str, int]
    """Sampled tokens of the side that was left, which train in no sample, by reason; empty where nobody collected."""
    trained_twice: int
    """Sampled tokens before the fork or on either side that carry loss in more than one sample."""

    def describe(self) -> str:
        """Describe the cost in one sentence."""
        kept = f", where {self.kept} stored ones would have been kept" if self.kept else ""
        cached = f" ({self.cached} of the whole prompt from the engine's prefix cache)" if self.cached else ""
        said = [f"{count(self.rendered, 'prompt token')} rendered anew{cached}{kept}"]
        if self.repeated:
            said.append(f"{count(self.repeated, 'token')} before the fork in two samples")
        if self.untrained:
            reasons = ", ".join(f"{tokens} {reason}" for reason, tokens in self.untrained.items())
            said.append(f"{count(sum(self.untrained.values()), 'sampled token')} of the other side not trained")
            said[-1] += f" ({reasons})"
        if self.trained_twice:
            said.append(f"{count(self.trained_twice, 'sampled token')} trained more than once")
        return "; ".join(said)

    def to_json(self) -> JsonObject:
        """Return the counts ready for JSON."""
        return {
            "rendered_tokens": self.rendered,
            "cached_tokens": self.cached,
            "kept_tokens": self.kept,
            "repeated_tokens": self.repeated,
            "untrained_tokens": dict(self.untrained),
            "trained_twice_tokens": self.trained_twice,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A turn that does not go on from the turn that it came nearest to."""

    turn: ShownTurn
    reason: str
    """What happened, in sentences."""
    cost: ForkCost
    heals: str
    """The setting that would have matched, or what else helps; empty where the fork is right as it is."""

    def to_json(self) -> JsonObject:
        """Return the fork ready for JSON."""
        return {
            "turn": self.turn.id,
            "parent": self.turn.parent,
            "label": self.turn.label,
            "cause": self.turn.cause,
            "near": self.turn.near,
            "difference": self.turn.difference,
            "setting": self.turn.would_match or None,
            "reason": self.reason,
            "cost": self.cost.to_json(),
            "heals": self.heals,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Sampled tokens of the session that do not train, for one reason."""

    reason: str
    tokens: int
    says: str
    heals: str

    def to_json(self) -> JsonObject:
        """Return the loss ready for JSON."""
        return {"reason": self.reason, "tokens": self.tokens, "says": self.says, "heals": self.heals}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A turn in flight."""

    turn: JsonObject
    """As the server shows it."""
    says: str
    heals: str

    def to_json(self) -> JsonObject:
        """Return the wait ready for JSON."""
        return {**self.turn, "says": self.says, "heals": self.heals}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionExplanation:
    """What is to be said of one session."""

    session_id: str
    summary: tuple[str, ...]
    """Sentences on the whole."""
    waits: tuple[Wait, ...]
    forks: tuple[Fork, ...]
    losses: tuple[TokenLoss, ...]

    def to_json(self) -> JsonObject:
        """Return the explanation ready for JSON."""
        return {
            "session_id": self.session_id,
            "summary": list(self.summary),
            "in_flight": [each.to_json() for each in self.waits],
            "forks": [each.to_json() for each in self.forks],
            "losses": [each.to_json() for each in self.losses],
        }


def explain_session(session: ShownSession) -> SessionExplanation:
    """Explain a session: what is in flight, where it forked, and which sampled tokens do not train."""
    kept = _find_kept(session)
    forks = tuple(_explain_fork(session, turn, kept) for turn in session.turns if turn.cause not in _NOT_FORKS)
    return SessionExplanation(
        session_id=session.id,
        summary=_summarise(session, forks),
        waits=tuple(map(_explain_wait, session.in_flight)),
        forks=forks,
        losses=_list_losses(session),
    )


def _explain_fork(session: ShownSession, turn: ShownTurn, kept: Container[int]) -> Fork:
    advice = _find_advice(CAUSES, turn.cause)
    near = "an earlier turn" if turn.near is None else f"turn {turn.near}"
    does = "starts a root of its own" if turn.parent is None else f"branches off from turn {turn.parent}"
    if turn.cause == Cause.REPEATED:
        does = f"stands beside {near}"
    reason = f"Turn {turn.id} {does}: {advice.says.replace('{near}', near)}."
    if turn.difference is not None:
        found = turn.difference
        reason += (
            f" Message {found.get('message')}, {found.get('field')}: stored {found.get('stored')!r}, "
            f"replayed {found.get('replayed')!r}."
        )
    heals = f"{turn.would_match} would have matched" if turn.would_match else advice.heals
    cost = _count_cost(session, turn, kept, goes_on=advice.goes_on or bool(turn.would_match))
    return Fork(turn=turn, reason=reason, cost=cost, heals=heals)


def _count_cost(session: ShownSession, turn: ShownTurn, kept: Container[int], *, goes_on: bool) -> ForkCost:
    above = session.trace(turn.parent)
    shared = above[-1].path_tokens if above else 0
    left = _list_left(session, turn)
    untrained: Counter[str] = Counter()
    for each in left:
        untrained.update(each.masked)
        untrained.update(each.dropped)
    return ForkCost(
        rendered=turn.added_tokens,
        cached=turn.cached_tokens,
        kept=max(0, left[-1].path_tokens - shared) if left and goes_on else 0,
        repeated=shared if _is_kept_twice(session, turn, kept) else 0,
        untrained=dict(untrained),
        trained_twice=sum(map(_count_trained_twice, (*above, *left, turn))),
    )


def _list_left(session: ShownSession, turn: ShownTurn) -> tuple[ShownTurn, ...]:
    """List the turns behind the fork, up to the one that the turn came nearest to."""
    if turn.near is None:
        return ()
    above = {each.id for each in session.trace(turn.parent)}
    return tuple(each for each in session.trace(turn.near) if each.id not in above)


def _is_kept_twice(session: ShownSession, turn: ShownTurn, kept: Container[int]) -> bool:
    """Tell whether samples hold both sides of a fork: the turn, and another one of its parent."""
    if turn.parent is None or turn.id not in kept:
        return False
    return any(each.parent == turn.parent and each.id != turn.id and each.id in kept for each in session.turns)


def _find_kept(session: ShownSession) -> set[int]:
    """Find the turns that stand in a sample: those above a leaf that was not dropped."""
    dropped = {leaf.get("node_id") for leaf in session.dropped_leaves}
    kept: set[int] = set()
    for leaf in session.list_leaves():
        at = None if leaf.id in dropped else leaf.id
        while at is not None and at not in kept:
            kept.add(at)
            at = session.turns[at].parent
    return kept


def _count_trained_twice(turn: ShownTurn) -> int:
    return 0 if turn.content is None else sum((token.trained or 0) > 1 for token in turn.content.tokens)


def _explain_wait(turn: JsonObject) -> Wait:
    phase = str(turn.get("phase", ""))
    advice = _find_advice(WAITS, phase)
    engine = f" ({turn['engine']})" if turn.get("engine") else ""
    what = "first prompt" if turn.get("parent") is None else f"request behind turn {turn['parent']}"
    says = (
        f"A {what} has been in flight for {format_seconds(turn.get('age_s', 0))}, for "
        f"{format_seconds(turn.get('phase_age_s', 0))} in phase {phase}: {advice.says}{engine}."
    )
    return Wait(turn=turn, says=says, heals=advice.heals)


def _list_losses(session: ShownSession) -> tuple[TokenLoss, ...]:
    found = [
        (_find_advice(table, reason), reason, tokens)
        for table, name in ((MASKED, "masked"), (DROPPED, "dropped"))
        for reason, tokens in session.accounting.get(name, {}).items()
    ]
    return tuple(
        TokenLoss(reason=reason, tokens=tokens, says=advice.says, heals=advice.heals)
        for advice, reason, tokens in found
    )


def _summarise(session: ShownSession, forks: tuple[Fork, ...]) -> tuple[str, ...]:
    turns, leaves = session.turns, session.list_leaves()
    said = [f"{session.history} history, {count(len(turns), 'turn')} on {count(len(leaves), 'path')}"]
    if session.closed:
        said[0] += f", takes no further turns: {session.closed}"
    sampled = session.accounting.get("sampled", 0)
    if sampled:
        trainable = session.accounting.get("trainable", 0)
        said.append(f"{trainable} of {sampled} sampled tokens train")
    rendered = sum(turn.added_tokens for turn in turns)
    if forks:
        anew = sum(fork.cost.rendered for fork in forks)
        said.append(f"{count(len(forks), 'fork')}; {anew} of {rendered} rendered prompt tokens are theirs")
    elif turns:
        said.append("nothing forked")
    if session.mismatches:
        said.append(
            f"the ids of the newest path say something else than its messages in {count(session.mismatches, 'place')}: "
            "turnkeeper verify says how far the family of the checkpoint holds"
        )
    return tuple(said)


def _find_advice(table: Mapping[str, Advice], name: str) -> Advice:
    """Find a row; of a name that only a newer server knows, the name itself."""
    return table.get(name) or Advice(says=name.replace("_", " "))
