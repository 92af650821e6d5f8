"""Which requests are retries.

1. An equal request in flight is joined only by a retry: its agent hung up, an equal key, or a retry count.
2. A stored reply is replayed when it was never written in full, or to a marked retry while it is young and unextended.
3. Everything else is sampled: best-of-n and twin sub-agents send equal bodies on purpose.
4. The digest covers messages, tools, template arguments and sampling, and nothing else.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from sessionkit import ask, assistant, user
from turnkeeper.core import build_query
from turnkeeper.core.idempotency import (
    Answer,
    Decision,
    RetryMarks,
    RunningCall,
    StoredReply,
    decide,
    digest_request,
    read_retry_marks,
)
from turnkeeper.ids import TurnId

PARENT = TurnId(4)
NO_MARKS = RetryMarks()
RETRY = RetryMarks(retry_count=1)
KEY = RetryMarks(key="k")


def running(number: int = 0, **fields: Any) -> RunningCall:
    return RunningCall(**{"number": number, "digest": "d", "parent": PARENT, **fields})


def stored(turn_id: int = 7, **fields: Any) -> StoredReply:
    settled: dict[str, Any] = {"digest": "d", "committed_at": 90.0, "is_delivered": True, "has_children": False}
    return StoredReply(turn_id=TurnId(turn_id), **{**settled, **fields})


@dataclass(frozen=True)
class Case:
    id: str
    expected: Decision
    marks: RetryMarks = NO_MARKS
    running: tuple[RunningCall, ...] = ()
    stored: tuple[StoredReply, ...] = ()


NEW, RESAMPLE = Decision(answer=Answer.NEW), Decision(answer=Answer.RESAMPLE)


def join(number: int) -> Decision:
    return Decision(answer=Answer.JOIN, number=number)


def replay(turn_id: int) -> Decision:
    return Decision(answer=Answer.REPLAY, turn_id=TurnId(turn_id))


CASES = (
    Case("nothing equal", NEW, RETRY, (running(digest="x"),), (stored(digest="x"),)),
    Case("a twin in flight is a sample of its own", RESAMPLE, running=(running(),)),
    Case("a twin of another parent is another request", NEW, RETRY, (running(parent=None),)),
    Case("the agent of the call in flight hung up", join(3), running=(running(3, is_connected=False),)),
    Case("a retry count joins", join(3), RETRY, (running(3),)),
    Case("an equal key joins", join(3), KEY, (running(3, key="k"),)),
    Case("another key does not join", RESAMPLE, KEY, (running(3, key="other"),)),
    Case("no key is not an equal key", RESAMPLE, running=(running(3, key=""),)),
    Case("an equal key before a hang-up", join(2), KEY, (running(1, is_connected=False), running(2, key="k"))),
    Case("a hang-up before a call that is listened to", join(2), RETRY, (running(1), running(2, is_connected=False))),
    Case("the call that fewest joined", join(2), RETRY, (running(1, joined=1), running(2))),
    Case("the oldest of equals", join(1), RETRY, (running(2), running(1))),
    Case("never written in full", replay(7), stored=(stored(is_delivered=False),)),
    Case("never written, however old", replay(7), stored=(stored(is_delivered=False, committed_at=0.0),)),
    Case("extended, so an agent knows it", RESAMPLE, stored=(stored(is_delivered=False, has_children=True),)),
    Case("delivered, and no mark", RESAMPLE, stored=(stored(),)),
    Case("delivered, a retry count", replay(7), RETRY, stored=(stored(),)),
    Case("delivered, an equal key", replay(7), KEY, stored=(stored(key="k"),)),
    Case("delivered, another key", RESAMPLE, KEY, stored=(stored(key="other"),)),
    Case("the key's own reply, not the newest", replay(7), KEY, stored=(stored(7, key="k"), stored(8))),
    Case("delivered, marked, too old", RESAMPLE, RETRY, stored=(stored(committed_at=89.0),)),
    Case("delivered, marked, extended", RESAMPLE, RETRY, stored=(stored(has_children=True),)),
    Case(
        "an older twin is not replayed past an extended one",
        RESAMPLE,
        RETRY,
        (),
        (stored(6), stored(7, has_children=True)),
    ),
    Case("the newest of two", replay(8), RETRY, stored=(stored(8), stored(7))),
    Case(
        "an undelivered reply before a twin in flight", replay(7), RETRY, (running(1),), (stored(is_delivered=False),)
    ),
    Case(
        "a hang-up before an undelivered reply",
        join(1),
        RETRY,
        (running(1, is_connected=False),),
        (stored(is_delivered=False),),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_request_is_decided(case: Case) -> None:
    decision = decide("d", PARENT, case.marks, running=case.running, stored=case.stored, at=100.0, replay_window_s=10.0)
    assert decision == case.expected


@pytest.mark.parametrize(
    ("count", "read"), [("0", 0), ("2", 2), ("", 0), ("x", 0), ("-1", 0), ("1e3", 0), ("²", 0), ("9" * 400, 0)]
)
def test_a_retry_count_that_is_no_number_is_none(count: str, read: int) -> None:
    assert read_retry_marks({"x-stainless-retry-count": count}) == RetryMarks(retry_count=read)


def test_marks_are_read_from_the_headers() -> None:
    assert read_retry_marks({"idempotency-key": " k "}) == RetryMarks(key="k")
    assert read_retry_marks({}) == RetryMarks()


BASE: dict[str, Any] = {"tools": ({"name": "t"},), "chat_template_kwargs": {"a": 1}}


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        pytest.param({}, True, id="nothing"),
        pytest.param({"headers": {"x": "y"}, "forwarded": {"user": "u"}, "notes": ("n",)}, True, id="noise"),
        pytest.param({"agent": ""}, True, id="the main agent"),
        pytest.param({"agent": "a7"}, False, id="another agent"),
        pytest.param({"messages": (user("v"),)}, False, id="messages"),
        pytest.param({"messages": ({"role": "user", "content": [{"type": "text", "text": "u"}]},)}, True, id="parts"),
        pytest.param({"messages": (user("u"), assistant(""))}, False, id="one more"),
        pytest.param({"tools": ()}, False, id="tools"),
        pytest.param({"chat_template_kwargs": {"a": 2}}, False, id="template arguments"),
        pytest.param({"sampling": {"seed": 2}}, False, id="sampling"),
        pytest.param({"sampling": {"top_p": 1, "seed": 1}}, False, id="one more sampling field"),
    ],
)
def test_the_digest_covers_what_is_sampled_from(change: dict[str, Any], is_same: bool) -> None:
    def digest(fields: dict[str, Any]) -> str:
        agent = fields.pop("agent", None)
        messages = fields.pop("messages", (user("u"),))
        request = ask(*messages, **{"sampling": {"seed": 1}, **BASE, **fields})
        return digest_request(build_query(request), request.sampling, agent)

    assert (digest({}) == digest(change)) is is_same
