"""The append-only forest of turns, and what order in time says about them.

A turn's id is its place in commit order. Nothing is ever removed or changed: a retry stands beside what it
supersedes. Knows nothing of policies: which paths are live is for them to say.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection
from hashlib import blake2b

from turnkeeper.core.callids import UsedIds
from turnkeeper.core.cause import Label
from turnkeeper.core.pathids import PathIds
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import Turn
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import Message
from turnkeeper.matching import NormalMessage, Rewrite, RewriteKind, normalize


class Forest:
    """Turns by id, by parent and by path."""

    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._children: defaultdict[TurnId | None, list[TurnId]] = defaultdict(list)
        self._segments: list[tuple[NormalMessage, ...]] = []
        self._told: list[tuple[Message, ...]] = []
        self._askings: list[bytes] = []
        self._twins: defaultdict[tuple[TurnId | None, bytes], list[TurnId]] = defaultdict(list)
        self._last_begun: Counter[tuple[TurnId | None, bytes]] = Counter()
        self._path_ids = PathIds()
        self.used_ids = UsedIds()
        """The call ids of its turns."""
        self.trunk = -1
        """The last turn beside whose path no other turn is, so that all turns are on it or descend from it; -1 where
        there is none. The turns on the trunk have the first ids."""
        self._rewrites: defaultdict[TurnId, dict[str, Rewrite | None]] = defaultdict(dict)

    def __len__(self) -> int:
        """Count the turns."""
        return len(self._turns)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns in commit order."""
        return tuple(self._turns)

    @property
    def last(self) -> Turn | None:
        """The turn committed last; None before the first."""
        return self._turns[-1] if self._turns else None

    def get(self, turn_id: TurnId) -> Turn:
        """Return the turn of this id; raise IndexError where there is none."""
        if turn_id < 0:
            raise IndexError(f"there is no turn {turn_id}")
        return self._turns[turn_id]

    def children(self, turn_id: TurnId | None) -> tuple[TurnId, ...]:
        """Return the turns that extend a turn, in commit order; the roots for None."""
        return tuple(self._children.get(turn_id, ()))

    def leaves(self) -> tuple[TurnId, ...]:
        """List the turns without children, in commit order."""
        return tuple(turn.id for turn in self._turns if turn.id not in self._children)

    def path(self, turn_id: TurnId | None) -> tuple[Turn, ...]:
        """Return the turns from the root to a turn; none for None."""
        path: list[Turn] = []
        while turn_id is not None:
            turn = self.get(turn_id)
            path.append(turn)
            turn_id = turn.parent
        return tuple(reversed(path))

    def path_messages(self, turn_id: TurnId | None) -> tuple[Message, ...]:
        """List the messages of a turn's path in stored spelling, with call ids as agents were shown them."""
        path = self.path(turn_id)
        return tuple(message for turn in path for message in (*turn.messages, turn.completion.message))

    def engine_messages(self, turn_id: TurnId | None) -> tuple[Message, ...]:
        """List the messages of a turn's path as the engine and the renderer are told them: with the call ids that were
        sampled."""
        return tuple(message for turn in self.path(turn_id) for message in self._told[turn.id])

    def path_ids(self, turn_id: TurnId) -> TokenIds:
        """Return the ids of a turn's path, shape [path_tokens], completion included. They are joined once and then only
        appended to."""
        missing: list[Turn] = []
        above: TurnId | None = turn_id
        while above is not None and self._path_ids.find(above) is None:
            missing.append(self.get(above))
            above = missing[-1].parent
        for turn in reversed(missing):
            self._path_ids.extend(turn.parent, turn.prompt.trim, (turn.prompt.ids, turn.completion.ids), turn.id)
        ids = self._path_ids.find(turn_id)
        assert ids is not None
        return ids

    @property
    def joined_bytes(self) -> int:
        """The memory that the joined paths take, in bytes."""
        return self._path_ids.size_bytes

    def segment(self, turn_id: TurnId) -> tuple[NormalMessage, ...]:
        """Return what a turn adds to its path as the matchers see it: its messages, then that of its completion. Call
        ids are those that the agent was shown."""
        return self._segments[turn_id]

    def asking(self, turn_id: TurnId) -> bytes:
        """Return a digest of what a turn asks of its parent, and for which agent. Turns of equal digests ask for the
        same."""
        return self._askings[turn_id]

    def reply_forms(self, turn_id: TurnId) -> Collection[str]:
        """Return the forms in which later turns brought back the reply of a turn; the stored form is an empty text."""
        return self._rewrites.get(turn_id, {}).keys()

    def rewritten(self, turn_id: TurnId) -> tuple[RewriteKind, ...]:
        """List the kinds of changes with which the turn's reply came back, in the order of ``RewriteKind``."""
        rewrites = self._rewrites.get(turn_id, {}).values()
        found = {kind for rewrite in rewrites if rewrite is not None for kind in rewrite.kinds}
        return tuple(kind for kind in RewriteKind if kind in found) if found else ()

    def label(self, turn_id: TurnId) -> Label:
        """Find the label of a turn among its siblings: superseded before parallel, before root, branch and extension.
        The siblings are not looked at one by one."""
        turn = self.get(turn_id)
        asking = turn.parent, self._askings[turn_id]
        twins = self._twins[asking]
        place = bisect_left(twins, turn_id)
        if self._last_begun[asking] > turn_id:
            return Label.SUPERSEDED
        # No twin began after this turn was done: all that came later overlap it, of the earlier ones the last at first.
        if twins[-1] > turn_id or (place and twins[place - 1] >= turn.begun_after):
            return Label.PARALLEL
        if turn.parent is None:
            return Label.ROOT
        are_twins_before = bisect_left(self._children[turn.parent], turn_id) == place
        return Label.EXTENSION if are_twins_before else Label.BRANCH

    def append(self, turn: Turn) -> None:
        """Add a turn whose id is the next one and whose parent, if it has one, is there."""
        segment = tuple(normalize(message) for message in (*turn.messages, turn.completion.message))
        self.used_ids.add(turn, segment)
        if turn.parent is None:
            self.trunk = -1 if self._turns else 0
        elif turn.parent == self.trunk == turn.id - 1:
            self.trunk = turn.id
        else:
            self.trunk = min(self.trunk, turn.parent)
        self._turns.append(turn)
        self._children[turn.parent].append(turn.id)
        self._segments.append(segment)
        self._told.append(tuple(self.used_ids.restore(each.message) for each in segment))
        self._askings.append(_digest_asking(turn, segment[:-1]))
        asking = turn.parent, self._askings[turn.id]
        self._twins[asking].append(turn.id)
        self._last_begun[asking] = max(self._last_begun[asking], turn.begun_after)
        if turn.parent is not None:
            form, forms = "" if turn.rewrite is None else turn.rewrite.form, self._rewrites[turn.parent]
            forms[form] = turn.rewrite or forms.get(form)


def _digest_asking(turn: Turn, appended: tuple[NormalMessage, ...]) -> bytes:
    """Digest what makes two children of one parent ask the same: one agent, equal messages, an equal context."""
    hasher = blake2b(f"{turn.context_digest}{turn.agent or ''}\0".encode(), digest_size=16)
    for message in appended:
        hasher.update(message.digest)
    return hasher.digest()
