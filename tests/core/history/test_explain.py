"""Labels and explanations.

1. A label follows from order in time: parallel where calls overlapped, superseded where a later one asked the same.
2. Every root and branch says why it is no extension: the cause, the nearest turn, the first difference, the setting.
3. Headers that name a conversation never choose where a turn attaches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sessionkit import Talk, assistant, call, system, tool, user
from turnkeeper.choices import OnRewrittenCalls
from turnkeeper.core import Cause, Explanation, Label, Tree
from turnkeeper.jsontypes import Message
from turnkeeper.matching import MATCHERS, Matcher, ReplyRules, load_matcher

CALLED = assistant("a", reasoning_content="why", tool_calls=[call("f", '{"x": 1}')])
TOLD = (system("s"), user("u"))


def labels(talk: Talk) -> list[Label]:
    return [talk.session.forest.label(turn.id) for turn in talk.session.forest.turns]


def test_the_next_turn_of_a_path_is_an_extension_and_needs_no_explanation() -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    turn = talk.say(user("u"), assistant("a"), user("v"))
    assert labels(talk) == [Label.ROOT, Label.EXTENSION]
    assert turn.why.cause is Cause.NONE


@pytest.mark.parametrize("texts", [("v", "v"), ("v", "w")], ids=["equal", "other"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlapping", "one after the other"])
def test_a_sibling_is_labelled_by_what_it_asks_and_by_order_in_time(texts: tuple[str, str], overlap: bool) -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    requests = [(user("u"), assistant("a"), user(text)) for text in texts]
    if overlap:
        for pending in [talk.begin(*request) for request in requests]:
            talk.commit(pending, "r")
    else:
        for request in requests:
            talk.say(*request)
    expected = {
        (True, True): [Label.PARALLEL, Label.PARALLEL],
        (True, False): [Label.SUPERSEDED, Label.EXTENSION],
        (False, True): [Label.EXTENSION, Label.BRANCH],
        (False, False): [Label.EXTENSION, Label.BRANCH],
    }
    assert labels(talk)[1:] == expected[texts[0] == texts[1], overlap]


def test_roots_with_other_tools_do_not_ask_the_same() -> None:
    talk = Talk()
    talk.say(user("u"))
    talk.say(user("u"), tools=({"name": "t"},))
    assert labels(talk) == [Label.ROOT, Label.ROOT]


@dataclass(frozen=True)
class Case:
    id: str
    request: tuple[Message, ...]
    cause: Cause
    differs_in: str = ""
    would_match: str = ""
    first: tuple[Message, ...] = TOLD
    reply: Message = field(default_factory=lambda: CALLED)
    matcher: Matcher = MATCHERS["tolerant"]
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def replay(**changes: Any) -> Message:
    return {**CALLED, **changes}


CASES = (
    Case("repeated", TOLD, Cause.REPEATED),
    Case("cut short", TOLD[:1], Cause.CUT_SHORT),
    Case("another system message", (system("title"), user("u")), Cause.SYSTEM_CHANGED, "content"),
    Case("a developer in its place", ({"role": "developer", "content": "s"}, user("u")), Cause.SYSTEM_CHANGED, "role"),
    Case("no system message", (user("u"),), Cause.SYSTEM_CHANGED, "role"),
    Case("another first message", (system("s"), user("summary")), Cause.OTHER_START, "content"),
    Case("compacted", (system("s"), user("summary"), CALLED, user("go")), Cause.COMPACTED, "content"),
    Case(
        "compacted, a reply with other arguments and no reasoning",
        (system("s"), user("summary"), assistant("a", tool_calls=[call("f", '{"x": 1, "y": 2}')]), user("go")),
        Cause.COMPACTED,
        "content",
    ),
    Case(
        "compacted, a reply without its text",
        (system("s"), user("summary"), assistant("", tool_calls=[call("f", '{"x": 1}')]), tool("r")),
        Cause.COMPACTED,
        "content",
    ),
    Case(
        "another start with an example that calls another function",
        (system("s"), user("example"), assistant("a", tool_calls=[call("g", '{"x": 1}')]), tool("r")),
        Cause.OTHER_START,
        "content",
    ),
    Case(
        "another start with an example whose call has another id",
        (
            system("s"),
            user("example"),
            assistant("a", tool_calls=[call("f", '{"x": 1}', "call_9")]),
            tool("r", "call_9"),
        ),
        Cause.OTHER_START,
        "content",
    ),
    Case("a later message edited", (*TOLD, user("edited")), Cause.INPUT_CHANGED, "content", first=(*TOLD, user("v"))),
    Case("a reply rewritten", (*TOLD, replay(content="b"), user("v")), Cause.REPLY_REWRITTEN, "content"),
    Case("a reply left out", (*TOLD, user("v")), Cause.REPLY_LEFT_OUT, "role"),
    Case(
        "arguments spelled otherwise",
        (*TOLD, replay(tool_calls=[call("f", '{"x":1}')]), tool("r")),
        Cause.REPLY_REWRITTEN,
        "tool_calls[0].arguments",
        "--session-message-matcher loose_tool_call",
        matcher=MATCHERS["strict"],
    ),
    Case(
        "reasoning left out",
        (*TOLD, assistant("a", tool_calls=CALLED["tool_calls"]), tool("r")),
        Cause.REPLY_REWRITTEN,
        "reasoning",
        "--session-message-matcher tolerant",
        matcher=MATCHERS["strict"],
    ),
    Case(
        "other arguments under a new id",
        (*TOLD, replay(tool_calls=[call("f", '{"x": 2}', "new")]), tool("r", "new")),
        Cause.REPLY_REWRITTEN,
        "tool_calls[0].arguments",
        "--session-message-matcher role_content_only",
    ),
    Case(
        "other arguments where ids prove nothing",
        (*TOLD, replay(tool_calls=[call("f", '{"x": 2}')]), tool("r")),
        Cause.REPLY_REWRITTEN,
        "tool_calls[0].arguments",
        "--on-rewritten-calls first",
        matcher=load_matcher("tolerant", ReplyRules(on_rewritten_calls=OnRewrittenCalls.FORK)),
    ),
    Case(
        "reasoning in the content of a reply of another matcher",
        (*TOLD, replay(content="<think>why</think>a", reasoning_content=None), tool("r")),
        Cause.REPLY_REWRITTEN,
        "content",
        "--session-message-matcher tolerant",
        matcher=load_matcher("loose_tool_call", ReplyRules(thinking_tags=("<think>", "</think>"))),
    ),
    Case(
        "other tools",
        (*TOLD, CALLED, tool("r")),
        Cause.TOOLS_CHANGED,
        would_match="--on-tools-change keep",
        fields={"tools": ({"name": "t"},)},
    ),
    Case(
        "the first request again with other template arguments",
        TOLD,
        Cause.TOOLS_CHANGED,
        would_match="--on-tools-change keep",
        fields={"chat_template_kwargs": {"enable_thinking": False}},
    ),
    Case(
        "other tools and another start", (system("t"),), Cause.SYSTEM_CHANGED, "content", fields={"tools": ({"n": 1},)}
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_root_says_why_it_is_none_of_the_paths_there_are(case: Case) -> None:
    talk = Talk(Tree(), matcher=case.matcher)
    talk.say(*case.first, reply=case.reply)
    turn = talk.say(*case.request, **case.fields)
    assert turn.parent is None
    assert (turn.why.cause, turn.why.near, turn.why.would_match) == (case.cause, 0, case.would_match)
    assert (turn.why.difference.field if turn.why.difference else "") == case.differs_in


def test_the_first_turn_says_that_it_is_the_first() -> None:
    assert Talk().say(user("u")).why == Explanation(cause=Cause.FIRST)


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        pytest.param((user("w"),), Cause.INPUT_CHANGED, id="another message"),
        pytest.param((user("v"), assistant("c"), user("x")), Cause.REPLY_REWRITTEN, id="a rewritten reply"),
        pytest.param((user("v"), user("x")), Cause.REPLY_LEFT_OUT, id="a reply left out"),
        pytest.param((user("v"),), Cause.REPEATED, id="again"),
    ],
)
def test_a_branch_says_why_it_is_not_the_next_turn(tail: tuple[Message, ...], cause: Cause) -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    talk.say(user("u"), assistant("a"), user("v"), reply="b")
    turn = talk.say(user("u"), assistant("a"), *tail)
    assert (turn.parent, turn.why.cause, turn.why.near) == (0, cause, 1)


def test_the_nearest_turn_is_the_one_followed_furthest_and_of_those_the_latest() -> None:
    talk = Talk()
    talk.say(*TOLD, reply="a")
    talk.say(*TOLD, reply="b")
    talk.say(system("t"), reply="c")
    assert talk.say(*TOLD, assistant("x"), user("v")).why.near == 1


def test_the_nearest_turn_may_lie_deeper_where_a_looser_matcher_reaches_it() -> None:
    talk = Talk(matcher=MATCHERS["strict"])
    rewritten = replay(tool_calls=[call("f", '{"x":1}')])
    talk.say(*TOLD, reply=CALLED)
    talk.say(*TOLD, CALLED, tool("r"), reply="deep")
    why = talk.say(*TOLD, rewritten, tool("r"), assistant("deep"), user("v")).why
    assert (why.cause, why.near, why.would_match) == (
        Cause.REPLY_REWRITTEN,
        1,
        "--session-message-matcher loose_tool_call",
    )
    assert why.difference is not None
    assert (why.difference.index, why.difference.field) == (2, "tool_calls[0].arguments")


def test_a_turn_that_a_looser_matcher_reaches_no_deeper_explains_nothing() -> None:
    talk = Talk(matcher=MATCHERS["strict"])
    talk.say(*TOLD, reply=CALLED)
    talk.say(*TOLD, CALLED, tool("r"))
    talk.say(*TOLD, reply=replay(tool_calls=[call("f", '{"x":1}')]))
    why = talk.say(*TOLD, CALLED, tool("other")).why
    assert (why.cause, why.near, why.would_match) == (Cause.INPUT_CHANGED, 1, "")


def test_a_first_request_that_is_repeated_is_told_from_longer_ones() -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    talk.say(user("u"), assistant("x"), user("v"), reply="b")
    assert talk.say(user("u")).why == Explanation(cause=Cause.REPEATED, near=talk.session.forest.get(0).id)


def test_a_path_that_was_committed_meanwhile_is_said_to_be() -> None:
    talk = Talk()
    late = talk.begin(user("u"), assistant("given"), user("v"))
    talk.say(user("u"), reply="given")
    assert talk.commit(late, "r").why == Explanation(cause=Cause.COMMITTED_LATER, near=talk.session.forest.get(0).id)


def test_an_explanation_reads_as_one_sentence_and_as_json() -> None:
    talk = Talk(matcher=MATCHERS["strict"])
    talk.say(user("u"), reply=assistant("a", reasoning_content="r"))
    why = talk.say(user("u"), assistant("a"), user("v")).why
    assert why.describe() == (
        "reply rewritten (compared with turn 0): message 1, reasoning: stored 'r', replayed ''; "
        "--session-message-matcher tolerant would have matched"
    )
    assert why.to_json() == {
        "cause": "reply_rewritten",
        "near": 0,
        "difference": {
            "message": 1,
            "field": "reasoning",
            "kind": "reasoning_trimmed",
            "stored": "r",
            "replayed": "",
        },
        "would_match": "--session-message-matcher tolerant",
    }
    assert Explanation(cause=Cause.FIRST).to_json() == {"cause": "first"}
    assert Explanation(cause=Cause.FIRST).describe() == "first"


def test_a_matcher_of_the_users_is_compared_with_every_built_in_one() -> None:
    def never(stored: Message, replayed: Message) -> bool:
        return False

    talk = Talk(matcher=imported(never))
    talk.say(user("u"), reply="a")
    why = talk.say(user("u"), assistant("a"), user("v")).why
    assert (why.cause, why.would_match) == (Cause.MATCHER_REFUSED, "--session-message-matcher strict")
    assert why.difference is not None
    assert why.difference.field == "message"


def imported(function: Callable[[Message, Message], bool]) -> Matcher:
    from turnkeeper.matching.matcher import ImportedMatcher

    return ImportedMatcher(name="tests.never", function=function)


def test_headers_do_not_choose_where_a_turn_attaches() -> None:
    talk = Talk()
    talk.say(user("u"), reply="a", headers={"x-session-id": "one"})
    talk.say(user("other"), reply="b", headers={"x-session-id": "two"})
    turn = talk.say(user("u"), assistant("a"), user("v"), headers={"x-session-id": "two"})
    assert turn.parent == 0
    assert turn.request.headers == {"x-session-id": "two"}


def test_accepted_differences_are_recorded_once_by_the_turn_that_replays_them_first() -> None:
    talk = Talk()
    talk.say(user("u"), reply=assistant("a", reasoning_content="r"))
    second = talk.say(user("u"), assistant("a"), user("v"), reply="b")
    third = talk.say(user("u"), assistant("a"), user("v"), assistant("b"), user("w"))
    assert [(each.index, each.field) for each in second.accepted] == [(1, "reasoning")]
    assert third.accepted == ()


def test_results_are_stored_under_the_ids_that_the_stored_calls_have() -> None:
    talk = Talk()
    talk.say(user("u"), reply=assistant("", tool_calls=[call("f", "{}", "stored")]))
    renamed = assistant("", tool_calls=[call("f", "{}", "renamed")])
    turn = talk.say(user("u"), renamed, tool("r", "renamed"), user("v"), reply="b")
    assert turn.messages == (tool("r", "stored"), user("v"))
    again = talk.begin(user("u"), renamed, tool("r", "renamed"), user("v"), assistant("b"), tool("q", "unknown"))
    assert (again.parent_id, again.appended) == (1, (tool("q", "unknown"),))


def test_a_rename_on_a_path_that_is_not_the_one_attached_to_restores_nothing() -> None:
    talk = Talk()
    talk.say(user("u"), reply=assistant("", tool_calls=[call("f", "{}", "one")]))
    first = assistant("", tool_calls=[call("f", "{}", "x")])
    talk.say(user("u"), first, tool("r", "x"), reply="deep")
    pending = talk.begin(user("u"), assistant("", tool_calls=[call("f", "{}", "one")]), tool("r", "one"))
    assert pending.appended == (tool("r", "one"),)
