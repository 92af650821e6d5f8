"""A turn between ``begin`` and ``commit``: resolved, and nothing changed yet."""

from dataclasses import dataclass, field

from turnkeeper.core.history import Query
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import Turn, TurnRequest
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import Message
from turnkeeper.matching import Difference, Rewrite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PendingTurn:
    """A turn between ``begin`` and ``commit``: the turn that a request extends, and the messages that the request adds.

    The engine is called in between, under no lock.
    """

    number: int
    """Unique in the session, from 0 in the order of ``begin``."""
    request: TurnRequest
    parent: Turn | None
    """The turn it extends; None for a new root."""
    parent_path_ids: TokenIds
    """Shape [parent.path_tokens]: the ids of the parent's path; empty for a root."""
    parent_messages: tuple[Message, ...]
    """All messages of the parent's path as the engine is told them, its completion's last; empty for a root."""
    appended: tuple[Message, ...]
    """The messages to append as the engine is told them: call ids are the sampled ones."""
    shown: tuple[Message, ...]
    """The messages to append as agents know them: results name their calls by the ids that replies showed."""
    context_changed: bool
    """True when tools or template arguments differ from those with which the root of the parent was rendered."""
    accepted: tuple[Difference, ...]
    """Differences in the replay of the parent's own messages that the matcher accepted."""
    rewrite: Rewrite | None
    """The changes of the parent's reply in the request, where the reply is known by its call ids alone."""
    begun_after: int
    """The number of turns that were committed at ``begin``."""
    begun_at: float
    """Unix seconds."""
    query: Query = field(repr=False)
    """The request as the search saw it; where it ``is_exact`` the messages of the parent's path are the turns' own."""
    is_exact: bool = False
    """True where the request repeats the parent's path without any difference."""

    @property
    def parent_id(self) -> TurnId | None:
        """The parent's id; None for a root."""
        return None if self.parent is None else self.parent.id

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation, in stored spelling wherever there is one and under the sampled call ids: what the
        engine is told."""
        return (*self.parent_messages, *self.appended)

    @property
    def bridges(self) -> bool:
        """True when the parent ended by length, so that the prompt has to end its turn first."""
        return self.parent is not None and self.parent.completion.is_truncated
