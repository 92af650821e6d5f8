"""The search that begins where the last request was found to go on from.

1. It finds what a search from the roots finds, whatever the turns beside the path and the edits of the request.
2. A turn beside the path, or a request that does not begin with the very messages, begins at the roots.
3. Of a request that repeats its path exactly, the messages of turns are the turns' own.
"""

from collections.abc import Sequence
from operator import is_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionkit import ask, assistant, call, completion_of, prompt_of, tool, user
from turnkeeper.choices import OnToolsChange
from turnkeeper.core import (
    Forest,
    HistoryPolicy,
    Linear,
    PendingTurn,
    Query,
    Session,
    Tree,
    TurnRequest,
    build_query,
    extend_query,
)
from turnkeeper.core.history import find_attach
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import Message
from turnkeeper.matching import MATCHERS

REPLIES = st.sampled_from(
    [
        assistant("a"),
        assistant("b", reasoning_content="why"),
        assistant("", tool_calls=[call("f", '{"x": 1}', "k0")]),
        assistant("c", tool_calls=[call("f", "{}", "k1")]),
    ]
)
ADDED = st.sampled_from([user("u"), user("v"), tool("r", "k0"), tool("r", "k1")])
REPLAYS = st.sampled_from(["as it was", "as it was", "without reasoning", "renamed", "other"])


def replay(message: Message, how: str) -> Message:
    """A reply as a client may bring it back."""
    if how == "without reasoning":
        return {name: value for name, value in message.items() if name != "reasoning_content"}
    if how == "renamed" and message.get("tool_calls"):
        return {**message, "tool_calls": [{**each, "id": f"{each['id']}!"} for each in message["tool_calls"]]}
    return {**message, "content": "else"} if how == "other" else {**message}


class Pair:
    """Two sessions with the same turns: one is asked with what it knows of its last request, the other is not."""

    def __init__(self, policy: HistoryPolicy, matcher: str) -> None:
        self.warm, self.cold = (Session.open(policy, matcher=MATCHERS[matcher]) for _ in range(2))
        self.known: Query | None = None

    def begin(self, messages: Sequence[Message]) -> tuple[PendingTurn, PendingTurn] | None:
        """One request to both; None where both refuse it in the same words."""
        request = ask(*messages)
        query = build_query(request)
        if self.known is not None and self.known.messages == query.messages[: len(self.known.messages)]:
            query = extend_query(self.known, ask(*messages[len(self.known.messages) :]))
        cold, warm = try_begin(self.cold, request, None), try_begin(self.warm, request, query)
        assert show(warm) == show(cold)
        if isinstance(warm, RequestError) or isinstance(cold, RequestError):
            return None
        self.known = warm.query if warm.is_exact else None
        return warm, cold

    def commit(self, pending: tuple[PendingTurn, PendingTurn], reply: Message) -> None:
        """The same reply to both."""
        warm, cold = (
            session.commit(each, prompt=prompt_of(), completion=completion_of({**reply}), at=2.0)
            for session, each in zip((self.warm, self.cold), pending, strict=True)
        )
        assert (warm.why, warm.accepted, warm.rewrite) == (cold.why, cold.accepted, cold.rewrite)
        assert warm.messages == cold.messages


def try_begin(session: Session, request: TurnRequest, query: Query | None) -> PendingTurn | RequestError:
    """The pending turn, or why it is refused."""
    try:
        return session.begin(request, at=1.0, query=query)
    except RequestError as error:
        return error


def show(pending: PendingTurn | RequestError) -> object:
    """What a request was resolved to, or why it was refused."""
    if isinstance(pending, RequestError):
        return type(pending), str(pending)
    return (
        pending.parent_id,
        pending.appended,
        pending.shown,
        pending.accepted,
        pending.rewrite,
        pending.context_changed,
        pending.query,
    )


POLICIES = st.sampled_from([Linear(max_rollback=2), Tree(on_tools_change=OnToolsChange.FORK)])


@given(POLICIES, st.sampled_from(list(MATCHERS)), st.data())
def test_a_known_request_changes_nothing_that_is_found(
    policy: HistoryPolicy, matcher: str, data: st.DataObject
) -> None:
    """Turns in order and beside each other, replays in several forms, requests that begin anew or in the middle."""
    pair, paths, open_turns = Pair(policy, matcher), [[user("s")]], []
    for _ in range(data.draw(st.integers(2, 7))):
        path = data.draw(st.sampled_from(paths[-3:]))
        path = path[: data.draw(st.integers(1, len(path)))] if data.draw(st.integers(0, 5)) == 0 else path
        messages = [*path, data.draw(ADDED)]
        pending = pair.begin(messages)
        if pending is not None:
            open_turns.append((pending, messages))
        if open_turns and data.draw(st.integers(0, 3)):
            (pending, messages), reply = open_turns.pop(), data.draw(REPLIES)
            pair.commit(pending, reply)
            paths.append([*messages, replay(reply, data.draw(REPLAYS))])


def talk(turns: int) -> tuple[Session, Query, list[Message]]:
    """A session with so many turns in a row, what it knows of its last request, and a request that goes on."""
    session, messages, known = Session.open(Linear()), [user("s")], None
    for number in range(turns):
        request = ask(*messages)
        query = build_query(request) if known is None else extend_query(known, ask(*messages[len(known.messages) :]))
        pending = session.begin(request, at=1.0, query=query)
        reply = assistant(f"a{number}", tool_calls=[call("f", "{}", f"k{number}")])
        session.commit(pending, prompt=prompt_of(), completion=completion_of(reply), at=2.0)
        messages = [*messages, {**reply}, tool("r", f"k{number}")]
        known = pending.query
    assert known is not None
    return session, known, messages


def test_messages_of_turns_are_the_turns_own() -> None:
    session, known, messages = talk(4)
    pending = session.begin(ask(*messages), at=3.0, query=extend_query(known, ask(*messages[len(known.messages) :])))
    stored = [each for turn in session.forest.turns for each in session.forest.segment(turn.id)]
    assert pending.is_exact
    assert all(map(is_, stored, pending.query.messages))


def test_the_search_compares_only_what_is_new() -> None:
    """The turn before is compared with the request's new messages; those above it are not looked at."""
    session, known, messages = talk(4)
    query = extend_query(known, ask(*messages[len(known.messages) :]))
    trail = find_attach(session.forest, query, session.matcher, same_context=False).trail
    assert trail is not None
    again = extend_query(Query(messages=trail.messages, context_digest=query.context_digest), ask(user("u")))
    seen: list[int] = []
    forest = _Watched(session.forest, seen)
    found = find_attach(forest, again, session.matcher, same_context=False, trail=trail)  # pyright: ignore[reportArgumentType]
    assert found.turn is session.forest.last
    assert seen == []


class _Watched:
    """A forest that notes whose messages are asked for."""

    def __init__(self, forest: Forest, seen: list[int]) -> None:
        self._forest, self._seen = forest, seen

    def __getattr__(self, name: str) -> object:
        return getattr(self._forest, name)

    def segment(self, turn_id: int) -> object:
        self._seen.append(turn_id)
        return self._forest.segment(turn_id)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("parents", "trunk"),
    [
        ([], -1),
        ([None], 0),
        ([None, 0, 1], 2),
        ([None, 0, 1, 1], 1),
        ([None, 0, 1, 1, 2, 3], 1),
        ([None, 0, 1, 1, 0], 0),
        ([None, None], -1),
        ([None, 0, None, 1], -1),
    ],
)
def test_the_trunk_is_the_path_without_any_beside_it(parents: list[int | None], trunk: int) -> None:
    session, paths = Session.open(Tree()), [[user("s")]]
    for number, parent in enumerate(parents):
        path = [user(f"root {number}")] if parent is None else [*paths[parent + 1], user(f"u{number}")]
        pending = session.begin(ask(*path), at=1.0)
        session.commit(pending, prompt=prompt_of(), completion=completion_of(assistant(f"a{number}")), at=2.0)
        paths.append([*path, assistant(f"a{number}")])
    assert [turn.parent for turn in session.forest.turns] == parents
    assert session.forest.trunk == trunk
