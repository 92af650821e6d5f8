"""The view of a session at one moment, from which samples are made.

The service fills a view from a session; nothing here holds on to the session itself, so that a collect can run
beside turns that commit meanwhile. Knows no wire and no hook.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from turnkeeper.choices import HistoryKind
from turnkeeper.core import Label, Session, Turn
from turnkeeper.errors import AssemblyError
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A session at one moment."""

    history: HistoryKind
    """Linear: at most one leaf. Tree: every leaf is a candidate, and hooks decide."""
    turns: tuple[Turn, ...]
    """All committed turns in commit order: ``turns[i].id == i``."""
    labels: tuple[Label, ...]
    """The label of each turn among its siblings; parallel to ``turns``."""
    askings: tuple[bytes, ...]
    """A digest of what each turn asked of its parent; parallel to ``turns``. Equal digests ask the same."""
    leaves: tuple[TurnId, ...]
    """The ends of the paths that may become samples, in commit order: leaves, or where turns of models that are not
    trained end a path, the turns before those."""
    undelivered: frozenset[TurnId] = frozenset()
    """Turns whose reply never reached the agent in full."""
    untrained: frozenset[TurnId] = frozenset()
    """Turns for which the agent asked another model than those that are trained."""
    rewritten: Mapping[TurnId, tuple[str, ...]] = field(default_factory=dict[TurnId, tuple[str, ...]])
    """The kinds of rewriting of each turn whose reply came back rewritten."""
    mismatches: Mapping[TurnId, Sequence[JsonObject]] = field(default_factory=dict[TurnId, Sequence[JsonObject]])
    """``tito_session_mismatch`` of the path that ends at a leaf; leaves where nobody computed it are left out."""
    noncanonical: Mapping[TurnId, int] = field(default_factory=dict[TurnId, int])
    """The turns whose sampled ids are known not to be canonical, each with the place of the first such id in its
    completion."""
    messages: Mapping[TurnId, tuple[Message, ...]] = field(default_factory=dict[TurnId, tuple[Message, ...]])
    """All messages of the path that ends at a leaf; empty unless they are to be saved with the samples."""
    is_evaluation: bool = False
    """True when the session evaluates the policy, so that nothing of it is trained."""

    def trace(self, leaf: TurnId) -> tuple[Turn, ...]:
        """Return the path of a turn, root first."""
        path: list[Turn] = []
        at: TurnId | None = leaf
        while at is not None:
            path.append(self.turns[at])
            at = self.turns[at].parent
        return tuple(reversed(path))


def view_session(
    session: Session,
    *,
    mismatches: Mapping[TurnId, Sequence[JsonObject]] | None = None,
    noncanonical: Mapping[TurnId, int] | None = None,
    unknown: Collection[TurnId] = (),
    with_messages: bool = False,
    train_models: Collection[str] = (),
    is_evaluation: bool = False,
) -> SessionView:
    """Take the view of a session as it stands.

    Args:
        session: only read.
        mismatches: by leaf, where they were computed.
        noncanonical: by turn, the place of the first id that is not canonical, as far as turns were looked at.
        unknown: turns of which nobody knows whether their reply was delivered; they count as delivered.
        with_messages: True when samples are to carry their messages (``save_debug_trajectory_data``).
        train_models: the models that are trained, by the names that agents ask for; empty for all.
        is_evaluation: True when the session was opened for an evaluation.
    """
    forest = session.forest
    turns = forest.turns
    untrained = frozenset(turn.id for turn in turns if train_models and not _is_trained(turn, train_models))
    leaves = _find_ends(turns, session.live_leaves(), untrained) if untrained else session.live_leaves()
    return SessionView(
        history=session.policy.kind,
        turns=turns,
        labels=tuple(forest.label(turn.id) for turn in turns),
        askings=tuple(forest.asking(turn.id) for turn in turns),
        leaves=leaves,
        rewritten={turn.id: kinds for turn in turns if (kinds := tuple(map(str, forest.rewritten(turn.id))))},
        undelivered=frozenset(
            turn.id for turn in turns if not session.is_delivered(turn.id) and turn.id not in unknown
        ),
        untrained=untrained,
        mismatches=mismatches or {},
        noncanonical=noncanonical or {},
        messages={leaf: forest.path_messages(leaf) for leaf in leaves} if with_messages else {},
        is_evaluation=is_evaluation,
    )


def _is_trained(turn: Turn, train_models: Collection[str]) -> bool:
    """Return True if a turn is trained; a request that names no model asks for the policy."""
    return not turn.request.model or turn.request.model in train_models


def _find_ends(turns: Sequence[Turn], leaves: Sequence[TurnId], untrained: Collection[TurnId]) -> tuple[TurnId, ...]:
    """Find the last trained turn of each path, in commit order; turns that stand on the path of another are left
    out."""
    ends: set[TurnId] = set()
    for leaf in leaves:
        end: TurnId | None = leaf
        while end is not None and end in untrained:
            end = turns[end].parent
        if end is not None:
            ends.add(end)
    inside: set[TurnId] = set()
    for end in ends:
        above = turns[end].parent
        while above is not None and above not in inside:
            inside.add(above)
            above = turns[above].parent
    return tuple(sorted(ends - inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The positions of one turn in the tokens of a path.

    ::

        ... parent | prompt ids | completion kept | trimmed |
                   start        sampled           kept      stop

    A trimmed token was sampled, but the next turn of this path has another marker at its place. It stays in a path
    that ends at this turn.
    """

    turn: Turn
    start: int
    """The position of the first prompt id."""
    sampled: int
    """The position of the first completion id: the length of the whole prompt."""
    kept: int
    """One past the last completion id that this path keeps."""
    stop: int
    """One past the last completion id: the length of the path that ends at this turn."""


def lay_out(path: Sequence[Turn]) -> tuple[Stretch, ...]:
    """Find the positions of the turns of a path.

    Raises:
        AssemblyError: a turn trims more of its parent than its parent sampled.
    """
    stretches: list[Stretch] = []
    length = 0
    for turn, child in zip(path, [*path[1:], None], strict=True):
        start = length - turn.prompt.trim
        sampled = start + len(turn.prompt.ids)
        stop = sampled + len(turn.completion.ids)
        trim = child.prompt.trim if child else 0
        if start < 0 or stop - trim < sampled:
            raise AssemblyError(
                f"turn {child.id if child else turn.id} trims more ids than turn {turn.id} sampled "
                f"({len(turn.completion.ids)})",
                turn=int(turn.id),
            )
        stretches.append(Stretch(turn=turn, start=start, sampled=sampled, kept=stop - trim, stop=stop))
        length = stop
    return tuple(stretches)
