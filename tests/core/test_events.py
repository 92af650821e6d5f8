"""Events, and folding them.

1. Every change of a session is one event, in order.
2. Folding a session's events gives the session again, with nothing in flight, and it goes on from there.
3. What is no session's story is refused.
"""

import pytest

from sessionkit import Talk, assistant, user
from turnkeeper.core import DropReason, Linear, Session, fold
from turnkeeper.core.event import ReplyDelivered, SessionClosed, SessionOpened, TokensDropped, TurnCommitted
from turnkeeper.errors import ConfigError, TurnLimitError
from turnkeeper.matching import MATCHERS


def told() -> Talk:
    talk = Talk(Linear(max_rollback=2), matcher=MATCHERS["strict"], turn_limit=3)
    turn = talk.say(user("u"), reply="a")
    talk.session.mark_delivered(turn.id, at=4.0)
    talk.session.drop(DropReason.ABORTED_PIECE, 3, at=5.0)
    talk.session.close("done", at=6.0)
    return talk


def test_every_change_is_one_event() -> None:
    opened, committed, *rest = told().session.events
    assert opened == SessionOpened(at=0.0, policy=Linear(max_rollback=2), matcher="strict", turn_limit=3)
    assert isinstance(committed, TurnCommitted)
    assert rest == [
        ReplyDelivered(at=4.0, turn_id=committed.turn.id),
        TokensDropped(at=5.0, reason=DropReason.ABORTED_PIECE, sampled_tokens=3),
        SessionClosed(at=6.0, reason="done"),
    ]


def test_folding_the_events_gives_the_session_again() -> None:
    session = told().session
    again = fold(session.events)
    assert again.events == session.events
    assert again.forest.turns == session.forest.turns
    assert again.is_delivered(session.forest.turns[0].id)
    assert (again.ledger, again.closed_as, again.policy) == (session.ledger, "done", session.policy)
    assert again.matcher == MATCHERS["strict"]


def test_a_folded_session_goes_on() -> None:
    talk = Talk(turn_limit=2)
    talk.say(user("u"), reply="a")
    talk.begin(user("lost in flight"))
    talk.session = fold(talk.session.events, matcher=talk.session.matcher)
    assert talk.say(user("u"), assistant("a"), user("v")).parent == 0
    with pytest.raises(TurnLimitError):
        talk.begin(user("w"))


@pytest.mark.parametrize("skip", [1, 5], ids=["the opening is missing", "nothing at all"])
def test_a_story_begins_with_its_opening(skip: int) -> None:
    with pytest.raises(ValueError, match="begins with its opening"):
        fold(told().session.events[skip:])


def test_a_session_is_opened_once() -> None:
    events = told().session.events
    with pytest.raises(ValueError, match="opened once"):
        fold([*events, events[0]])


def test_a_matcher_that_is_no_longer_there_is_named() -> None:
    opened = SessionOpened(at=0.0, policy=Linear(), matcher="gone.function", turn_limit=None)
    with pytest.raises(ConfigError, match=r"gone\.function"):
        fold([opened])


def test_a_new_session_is_its_opening_and_nothing_else() -> None:
    session = Session.open(Linear(), at=2.0)
    assert session.events == [SessionOpened(at=2.0, policy=Linear(), matcher="tolerant", turn_limit=None)]
    assert (len(session.forest), session.in_flight, session.closed_as) == (0, 0, None)
