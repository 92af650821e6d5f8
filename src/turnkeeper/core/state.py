"""The state of a session, which is the sum of its events. Only ``apply`` changes it."""

from turnkeeper.core.accounting import Ledger, drop_tokens
from turnkeeper.core.event import Event, ReplyDelivered, SessionClosed, SessionOpened, TokensDropped, TurnCommitted
from turnkeeper.core.forest import Forest
from turnkeeper.core.history import HistoryPolicy
from turnkeeper.ids import TurnId


class SessionState:
    """The live state of one session."""

    def __init__(self, opened: SessionOpened) -> None:
        self.policy: HistoryPolicy = opened.policy
        self.turn_limit = opened.turn_limit
        self.forest = Forest()
        self.ledger = Ledger()
        """The sampled tokens, and those that no turn holds; tokens that turns hold are accounted for by a collect."""
        self.delivered: set[TurnId] = set()
        """Turns whose reply was written in full at least once."""
        self.closed_as: str | None = None
        """Why it takes no further turns; None while it is open."""

    def apply(self, event: Event) -> None:
        """Change the state by one event.

        Raises:
            ValueError: a second opening.
        """
        match event:
            case TurnCommitted(turn=turn):
                self.forest.append(turn)
                self.ledger += Ledger(sampled=len(turn.completion.ids))
            case TokensDropped():
                self.ledger += drop_tokens(event.reason, event.sampled_tokens)
            case ReplyDelivered():
                self.delivered.add(event.turn_id)
            case SessionClosed():
                self.closed_as = event.reason
            case _:
                raise ValueError("a session is opened once, by its first event")
