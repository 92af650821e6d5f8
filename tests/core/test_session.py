"""A session from begin to commit.

1. begin changes nothing that anyone sees; commit appends under the parent that begin resolved.
2. A turn stores what it adds; the path gives the rest, the ids as they were sampled.
3. A refused or failed turn leaves the session as it was.
4. A pending turn ends once: committed, abandoned, or refused by a closed session.
5. Sampled tokens that no turn holds are accounted for.
6. A request that ends with an assistant message asks nothing, and is refused.
"""

from typing import Any

import numpy as np
import pytest

from sessionkit import Talk, ask, assistant, call, completion_of, prompt_of, system, user
from turnkeeper.channels.routing import RoutingRows
from turnkeeper.choices import OnToolsChange, OnTruncated
from turnkeeper.core import DropReason, FinishReason, Linear, Prompt, Tree, build_query, fold
from turnkeeper.core.tokens import NO_TOKENS
from turnkeeper.errors import (
    AssistantLastError,
    RequestError,
    SessionClosedError,
    TokenIntegrityError,
    TruncatedTurnError,
    TurnLimitError,
)
from turnkeeper.jsontypes import JsonObject, Message


def test_begin_changes_nothing_that_anyone_sees() -> None:
    talk = Talk()
    talk.say(user("u"))
    before = (len(talk.session.events), talk.session.forest.turns, talk.session.ledger)
    talk.begin(user("u"), assistant("ok"), user("v"))
    assert (len(talk.session.events), talk.session.forest.turns, talk.session.ledger) == before
    assert talk.session.in_flight == 1


def test_a_turn_goes_on_from_the_turn_whose_path_it_replays() -> None:
    talk = Talk()
    first = talk.say(system("s"), user("u"), reply="a")
    pending = talk.begin(system("s"), user("u"), assistant("a"), user("v"))
    assert pending.parent is first
    assert pending.appended == (user("v"),)
    assert pending.messages == (system("s"), user("u"), assistant("a"), user("v"))
    assert pending.parent_path_ids.tolist() == talk.session.forest.path_ids(first.id).tolist()


def test_a_turn_stores_only_what_it_adds() -> None:
    talk = Talk()
    talk.say(user("u"), reply="a", tools=({"name": "t"},))
    turn = talk.say(user("u"), assistant("a"), user("v"), reply="b", tools=({"name": "t"},))
    first = talk.session.forest.get(turn.parent or turn.id)
    assert turn.messages == (user("v"),)
    assert turn.request.messages == ()
    assert turn.request.tools[0] is first.request.tools[0]
    assert turn.path_messages == 4


def test_a_turn_keeps_its_tools_as_its_own_request_spelled_them() -> None:
    talk = Talk()
    listed: list[JsonObject] = [{"name": "t", "x": 1}, {"x": 1, "name": "t"}, {"name": "t", "x": 1}]
    loaded: list[tuple[JsonObject, ...]] = [(), ({"name": "u"},), ({"name": "u"}, {"name": "v"})]
    messages: list[Message] = []
    for tool_spelled, each in zip(listed, loaded, strict=True):
        messages.append(user("u"))
        turn = talk.say(*messages, reply="a", tools=(tool_spelled,), loaded_tools=each)
        messages.append(assistant("a"))
        assert list(turn.request.tools[0]) == list(tool_spelled)
        assert turn.request.callable_tools == (tool_spelled, *each)
    turns = talk.session.forest.turns
    assert [turn.parent for turn in turns] == [None, 0, 1]
    assert turns[2].request.tools[0] is turns[0].request.tools[0]
    assert turns[2].request.loaded_tools[0] is turns[1].request.loaded_tools[0]
    assert fold(talk.session.events).forest.turns == turns


def test_path_ids_join_prompt_and_completion_of_every_turn_less_the_trim() -> None:
    talk = Talk()
    first = talk.say(user("u"), reply="a")
    second = talk.commit(talk.begin(user("u"), assistant("a"), user("v")), "b", trim=1)
    expected = [*first.prompt.ids, *first.completion.ids[:-1], *second.prompt.ids, *second.completion.ids]
    assert talk.session.forest.path_ids(second.id).tolist() == expected
    assert second.path_tokens == len(expected)
    assert second.completion_span.stop - second.completion_span.start == len(second.completion.ids)


def test_commit_appends_under_the_parent_of_begin_though_the_live_path_has_moved() -> None:
    talk = Talk(Linear())
    first = talk.say(user("u"), reply="a")
    one, two = (talk.begin(user("u"), assistant("a"), user(text)) for text in "vw")
    assert talk.commit(one, "b").parent == first.id
    assert talk.commit(two, "c").parent == first.id


def test_a_turn_that_ended_by_length_is_not_extended_where_those_are_closed() -> None:
    talk = Talk(Tree(on_truncated=OnTruncated.CLOSE))
    talk.commit(talk.begin(user("u")), "cut", finish=FinishReason.LENGTH)
    with pytest.raises(TruncatedTurnError, match="turn 0, which ended by length"):
        talk.begin(user("u"), assistant("cut"), user("v"))


def test_a_turn_that_ended_by_length_is_bridged_where_the_policy_says_so() -> None:
    talk = Talk(Tree(on_truncated=OnTruncated.BRIDGE))
    talk.commit(talk.begin(user("u")), "cut", finish=FinishReason.LENGTH)
    assert talk.begin(user("u"), assistant("cut"), user("v")).bridges
    assert not talk.begin(user("u")).bridges


LAST: dict[str, tuple[tuple[Message, ...], str, int | None]] = {
    "its last reply": ((user("u"), assistant("a"), user("v"), assistant("b")), r"own last reply \(turn 1\)", 1),
    "an earlier reply of it": ((user("u"), assistant("a")), r"own reply \(turn 0\)", 0),
    "a rewritten reply": ((user("u"), assistant("other")), "an assistant message", None),
    "a begun reply behind its own": ((user("u"), assistant("a"), assistant("I")), "an assistant message", None),
    "a begun reply in another history": ((user("w"), assistant("a")), "an assistant message", None),
    "an assistant alone": ((assistant(""),), "an assistant message", None),
    "calls without results": ((user("u"), assistant("", tool_calls=[call("f", "{}")])), "an assistant message", None),
}


@pytest.mark.parametrize("policy", [Linear(), Tree(), Tree(on_truncated=OnTruncated.BRIDGE)], ids=str)
@pytest.mark.parametrize(("messages", "found", "turn_id"), LAST.values(), ids=LAST.keys())
@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_request_that_ends_with_an_assistant_message_is_refused_and_says_whose_it_is(
    policy: Linear | Tree, messages: tuple[Message, ...], found: str, turn_id: int | None, finish: FinishReason
) -> None:
    talk = Talk(policy)
    talk.say(user("u"), reply="a")
    talk.commit(talk.begin(user("u"), assistant("a"), user("v")), "b", finish=finish)
    before = len(talk.session.events)
    with pytest.raises(
        AssistantLastError, match=f"ends with {'the session.s ' if turn_id is not None else ''}{found}"
    ) as refused:
        talk.begin(*messages)
    assert refused.value.facts["turn_id"] == turn_id
    assert (len(talk.session.events), talk.session.in_flight) == (before, 0)


@pytest.mark.parametrize("policy", [Linear(), Tree()], ids=["linear", "tree"])
def test_other_tools_fork_under_tree_and_are_flagged_under_linear(policy: Linear | Tree) -> None:
    talk = Talk(policy)
    talk.say(user("u"), reply="a", tools=({"name": "t"},))
    pending = talk.begin(user("u"), assistant("a"), user("v"), tools=({"name": "other"},))
    is_tree = isinstance(policy, Tree)
    assert (pending.parent is None, pending.context_changed) == ((True, False) if is_tree else (False, True))


def test_other_tools_are_refused_where_the_policy_says_so() -> None:
    talk = Talk(Tree(on_tools_change=OnToolsChange.REFUSE))
    talk.say(user("u"), reply="a")
    with pytest.raises(RequestError, match="other tools"):
        talk.begin(user("u"), assistant("a"), user("v"), chat_template_kwargs={"enable_thinking": False})


def test_the_turn_limit_counts_what_is_in_flight() -> None:
    talk = Talk(turn_limit=2)
    talk.say(user("u"))
    talk.begin(user("v"))
    with pytest.raises(TurnLimitError, match="2 turns and has 1, 1 in flight"):
        talk.begin(user("w"))


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        pytest.param(Prompt(trim=2, ids=prompt_of().ids), "leaves out 0..1", id="trims two"),
        pytest.param(Prompt(trim=-1, ids=prompt_of().ids), "leaves out 0..1", id="trims backwards"),
    ],
)
def test_a_prompt_that_breaks_the_prefix_is_not_recorded(prompt: Prompt, named: str) -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    pending = talk.begin(user("u"), assistant("a"), user("v"))
    with pytest.raises(TokenIntegrityError, match=named):
        talk.session.commit(pending, prompt=prompt, completion=completion_of(assistant("b")), at=9.0)
    assert len(talk.session.forest) == 1
    assert talk.session.in_flight == 1


def test_an_empty_prompt_makes_no_root() -> None:
    talk = Talk()
    with pytest.raises(TokenIntegrityError, match="empty"):
        talk.session.commit(
            talk.begin(user("u")), prompt=Prompt(trim=0, ids=NO_TOKENS), completion=completion_of(assistant("a")), at=2
        )


def rows(size: int) -> RoutingRows:
    return RoutingRows(experts_RLK=np.zeros((size, 1, 1), dtype=np.uint8))


def indexer(size: int) -> np.ndarray:
    return np.zeros((size, 1, 1), dtype=np.int32)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        pytest.param({"rows": rows(5)}, "", id="exact"),
        pytest.param({"rows": rows(4)}, r"5 tokens to 10 adds 5 rows .*, not 4", id="a row short"),
        pytest.param({"rows": rows(6)}, r"5 tokens to 10 adds 5 rows .*, not 6", id="a row more"),
        pytest.param({"rows": rows(9)}, "", id="all of the path"),
        pytest.param({"rows": rows(10)}, r"all of its path: 9.*, not 10", id="more than the path"),
        pytest.param({"indexer_rows": indexer(9)}, "", id="exact indexer"),
        pytest.param({"indexer_rows": indexer(5)}, "", id="the indexer's rows behind the parent's"),
        pytest.param({"indexer_rows": indexer(4)}, "10 tokens has 9 rows, not 4", id="fewer of the indexer's rows"),
        pytest.param({"indexer_rows": indexer(8)}, "10 tokens has 9 rows, not 8", id="an indexer row short"),
    ],
)
def test_a_turn_adds_exactly_the_rows_of_its_tokens(fields: dict[str, Any], named: str) -> None:
    """Row i is that of token i as input: the patch starts at the parent's last token and spares the turn's own."""
    talk = Talk()
    root = completion_of(assistant("a"), 3, rows=rows(4), indexer_rows=indexer(4))
    talk.session.commit(talk.begin(user("u")), prompt=prompt_of(2), completion=root, at=1.0)
    pending = talk.begin(user("u"), assistant("a"), user("v"))
    fitting = completion_of(assistant("b"), 3, **fields)
    if named:
        with pytest.raises(TokenIntegrityError, match=named):
            talk.session.commit(pending, prompt=prompt_of(2), completion=fitting, at=2.0)
    else:
        assert talk.session.commit(pending, prompt=prompt_of(2), completion=fitting, at=2.0).path_tokens == 10


def test_indexer_rows_behind_those_of_a_parent_need_a_parent_that_holds_some() -> None:
    talk = Talk()
    root = completion_of(assistant("a"), 3, rows=rows(4))
    talk.session.commit(talk.begin(user("u")), prompt=prompt_of(2), completion=root, at=1.0)
    pending = talk.begin(user("u"), assistant("a"), user("v"))
    added = completion_of(assistant("b"), 3, indexer_rows=indexer(5))
    with pytest.raises(TokenIntegrityError, match="10 tokens has 9 rows, not 5"):
        talk.session.commit(pending, prompt=prompt_of(2), completion=added, at=2.0)


@pytest.mark.parametrize(("trim", "size"), [(0, 5), (1, 4)])
def test_the_patch_of_a_trimmed_prompt_covers_the_marker_that_replaces_the_trimmed_token(trim: int, size: int) -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    pending = talk.begin(user("u"), assistant("a"), user("v"))
    completion = completion_of(assistant("b"), 3, rows=rows(size))
    talk.session.commit(pending, prompt=prompt_of(2, trim=trim), completion=completion, at=2.0)


def test_a_request_may_be_reduced_once_for_both_questions() -> None:
    talk = Talk()
    talk.say(user("u"), reply="a")
    request = ask(user("u"), assistant("a"), user("v"))
    query = build_query(request)
    assert talk.session.find_parent(query) == 0
    assert talk.session.begin(request, at=1.0, query=query).parent_id == 0
    assert talk.session.find_parent(build_query(ask(user("x")))) is None


def test_preparing_changes_nothing_and_a_turn_prepared_for_another_place_is_refused() -> None:
    talk = Talk()
    first, second = talk.begin(user("a")), talk.begin(user("b"))
    prepared = [
        talk.session.prepare(pending, prompt=prompt_of(), completion=completion_of(assistant("x")), at=1.0)
        for pending in (first, second)
    ]
    assert (len(talk.session.forest), talk.session.in_flight) == (0, 2)
    talk.session.append(first, prepared[0])
    with pytest.raises(ValueError, match="turn 0 was prepared for another place, the next turn is 1"):
        talk.session.append(second, prepared[1])
    assert (len(talk.session.forest), talk.session.in_flight) == (1, 1)


def test_turns_of_one_parent_that_ask_the_same_have_one_asking() -> None:
    talk = Talk()
    first, again, other = (talk.say(user(text)) for text in ("a", "a", "b"))
    asking = talk.session.forest.asking
    assert asking(first.id) == asking(again.id) != asking(other.id)


def test_a_request_asked_about_before_a_commit_is_begun_from_what_stands_after_it() -> None:
    talk = Talk()
    request = ask(user("u"), assistant("a"), user("v"))
    query = build_query(request)
    assert talk.session.find_parent(query) is None
    talk.say(user("u"), reply="a")
    assert talk.session.begin(request, at=1.0, query=query).parent_id == 0


def test_a_closed_session_takes_no_turn_and_commits_none() -> None:
    talk = Talk()
    pending = talk.begin(user("u"))
    talk.session.close("deleted", at=3.0)
    talk.session.close("again", at=4.0)
    with pytest.raises(SessionClosedError, match="deleted"):
        talk.commit(pending, "a")
    with pytest.raises(SessionClosedError):
        talk.begin(user("u"))
    talk.session.abandon(pending, at=5.0, reason=DropReason.DELETED, sampled_tokens=7)
    assert talk.session.ledger.dropped == {DropReason.DELETED: 7}
    assert talk.session.in_flight == 0


def test_a_pending_turn_ends_once() -> None:
    talk = Talk()
    pending = talk.begin(user("u"))
    talk.commit(pending, "a")
    with pytest.raises(ValueError, match="already"):
        talk.commit(pending, "a")
    with pytest.raises(ValueError, match="already"):
        talk.session.abandon(pending, at=3.0)


def test_what_an_abandoned_call_sampled_is_accounted_for() -> None:
    talk = Talk()
    for reason, tokens in ((DropReason.CLIENT_GONE, 5), (DropReason.CLIENT_GONE, None), (None, None)):
        talk.session.abandon(talk.begin(user("u")), at=1.0, reason=reason, sampled_tokens=tokens)
    talk.say(user("u"))
    assert talk.session.ledger.sampled == 8
    assert talk.session.ledger.dropped == {DropReason.CLIENT_GONE: 5}
    assert talk.session.ledger.calls == {DropReason.CLIENT_GONE: 1}


def test_delivery_is_noted_once() -> None:
    talk = Talk()
    turn = talk.say(user("u"))
    assert not talk.session.is_delivered(turn.id)
    talk.session.mark_delivered(turn.id, at=5.0)
    size = len(talk.session.events)
    talk.session.mark_delivered(turn.id, at=6.0)
    assert talk.session.is_delivered(turn.id)
    assert len(talk.session.events) == size


def test_assistants_that_the_client_gives_are_counted_as_carried() -> None:
    talk = Talk()
    turn = talk.say(user("example"), assistant("shot"), user("u"))
    assert turn.carried == 1
    assert talk.say(user("example"), assistant("shot"), user("u"), assistant("ok"), user("v")).carried == 0


def test_a_request_is_kept_with_what_it_asked_for() -> None:
    talk = Talk()
    pending = talk.session.begin(ask(user("u"), sampling={"temperature": 0.5}, headers={"x-session-id": "s"}), at=0.0)
    turn = talk.commit(pending, "a")
    assert turn.request.sampling == {"temperature": 0.5}
    assert turn.request.headers == {"x-session-id": "s"}
    assert np.array_equal(pending.parent_path_ids, NO_TOKENS)
