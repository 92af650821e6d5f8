"""What clients do to a history, at random.

1. A JSON object stays equal to itself in every spelling, and is never equal to one in which a value was changed.
2. A client that only respells (arguments, ids one for one, trimmed reasoning, text parts) attaches turn to turn, and
   what is told to the engine is the stored spelling.
3. A client that changes one message attaches exactly to the turns before the change.
4. A history without branches gives the same turns and ids under both policies.
"""

import json
from itertools import count
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionkit import Talk, ask, assistant, call, tool, user
from thorough import examples
from turnkeeper.core import Completion, FinishReason, Linear, Prompt, Session, Tree, VersionSpan
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.jsontypes import Message
from turnkeeper.matching.arguments import are_arguments_equal

TEXT = st.text(max_size=6)
NUMBERS = st.one_of(st.integers(-(10**25), 10**25), st.floats(allow_nan=False, allow_infinity=False))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
SPELLINGS = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,  ", " :\n")]),
        "indent": st.sampled_from([None, 1]),
    }
)


def shuffle(value: Any, draw: Any) -> Any:
    """The same value with its keys in another order."""
    if isinstance(value, dict):
        return {key: shuffle(value[key], draw) for key in draw(st.permutations(list(value)))}
    return [shuffle(each, draw) for each in value] if isinstance(value, list) else value


@given(value=OBJECTS, one=SPELLINGS, other=SPELLINGS, data=st.data())
@settings(max_examples=examples(75), deadline=None)
def test_an_object_is_equal_in_every_spelling(
    value: dict[str, Any], one: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    assert are_arguments_equal(json.dumps(value, **one), json.dumps(shuffle(value, data.draw), **other))


def change(value: Any) -> Any:
    """The value with one thing about it changed, at its first leaf."""
    match value:
        case dict():
            return {**value, next(iter(value)): change(next(iter(value.values())))} if value else {"new": None}
        case list():
            return [change(value[0]), *value[1:]] if value else [None]
        case bool():
            return int(value)
        case None:
            return 0
        case str():
            return value + "x"
        case int():
            return value + 1
        case _:
            return repr(value)


@given(value=OBJECTS, one=SPELLINGS, other=SPELLINGS)
@settings(max_examples=examples(75), deadline=None)
def test_an_object_in_which_a_value_was_changed_is_another(
    value: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert not are_arguments_equal(json.dumps(value, **one), json.dumps(change(value), **other))


REPLIES = st.builds(
    lambda text, reasoning, objects: (text, reasoning, objects),
    st.text(min_size=1, max_size=4),
    st.sampled_from(["", "why", "\nwhy\n"]),
    st.lists(OBJECTS, max_size=2),
)


def build_reply(spec: tuple[str, str, list[dict[str, Any]]], ids: "count[int]") -> Message:
    text, reasoning, objects = spec
    calls = [call("f", json.dumps(value), f"call-{next(ids)}") for value in objects]
    return assistant(text, reasoning_content=reasoning, tool_calls=calls)


def answer(reply: Message) -> list[Message]:
    return [tool("r", each["id"]) for each in reply["tool_calls"]] or [user("go on")]


def respell(message: Message, draw: Any) -> Message:
    """What a client might make of a message without changing what it says."""
    spelled: dict[str, Any] = {**message, "extra": 1}
    if draw(st.booleans()):
        spelled["content"] = [{"type": "text", "text": part} for part in message["content"]]
    if message["role"] == "assistant":
        reasoning = message["reasoning_content"]
        spelled["reasoning_content"] = draw(st.sampled_from([reasoning, reasoning.strip(), None]))
        spelled["tool_calls"] = [respell_call(each, draw) for each in message["tool_calls"]] or None
    if "tool_call_id" in message:
        spelled["tool_call_id"] = f"client-{message['tool_call_id']}"
    return spelled


def respell_call(each: dict[str, Any], draw: Any) -> dict[str, Any]:
    value = json.loads(each["function"]["arguments"])
    function = {"name": "f", "arguments": json.dumps(shuffle(value, draw), **draw(SPELLINGS))}
    return {"id": f"client-{each['id']}", "index": 0, "function": function}


@given(specs=st.lists(REPLIES, min_size=2, max_size=5), data=st.data())
@settings(max_examples=examples(30), deadline=None)
def test_a_client_that_only_respells_attaches_turn_to_turn(
    specs: list[tuple[str, str, list[dict[str, Any]]]], data: st.DataObject
) -> None:
    talk, ids = Talk(), count()
    said: list[Message] = [user("u")]
    for index, spec in enumerate(specs):
        pending = talk.begin(*(respell(message, data.draw) for message in said))
        assert pending.parent_id == (index - 1 if index else None)
        assert [each for each in pending.messages if each["role"] == "assistant"] == [
            each for each in said if each["role"] == "assistant"
        ]
        assert [each.get("tool_call_id") for each in pending.messages] == [each.get("tool_call_id") for each in said]
        reply = build_reply(spec, ids)
        talk.commit(pending, reply)
        said += [reply, *answer(reply)]


@given(specs=st.lists(REPLIES, min_size=2, max_size=5), data=st.data())
@settings(max_examples=examples(30), deadline=None)
def test_a_client_that_changes_a_message_attaches_before_the_change(
    specs: list[tuple[str, str, list[dict[str, Any]]]], data: st.DataObject
) -> None:
    talk, ids = Talk(), count()
    said: list[Message] = [user("u")]
    ends: list[int] = []
    for spec in specs:
        reply = build_reply(spec, ids)
        talk.say(*said, reply=reply)
        ends.append(len(said) + 1)
        said += [reply, *answer(reply)]
    at = data.draw(st.integers(0, ends[-1] - 1))
    changed = {**said[at], "content": said[at]["content"] + "!"}
    pending = talk.begin(*said[:at], changed, *said[at + 1 :])
    whole = [index for index, end in enumerate(ends) if end <= at]
    assert pending.parent_id == (whole[-1] if whole else None)


@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 1)), min_size=1, max_size=8))
@settings(max_examples=examples(30), deadline=None)
def test_a_history_without_branches_is_the_same_under_both_policies(sizes: list[tuple[int, int, int]]) -> None:
    sessions = [Session.open(policy) for policy in (Linear(), Tree())]
    for session in sessions:
        ids, said = count(), [user("u")]
        for index, (prompt, completion, trim) in enumerate(sizes):
            pending = session.begin(ask(*said), at=0.0)
            turn = session.commit(
                pending,
                prompt=Prompt(trim=trim if index else 0, ids=freeze_ids([next(ids) for _ in range(prompt)])),
                completion=Completion(
                    ids=freeze_ids([next(ids) for _ in range(completion)]),
                    logprobs=np.array([-0.0] * completion),
                    message=assistant(f"a{index}"),
                    finish_reason=FinishReason.STOP,
                    versions=(VersionSpan(version=None, start=0, stop=completion),),
                ),
                at=1.0,
            )
            said += [turn.completion.message, user(f"u{index}")]
    linear, tree = sessions
    assert linear.live_leaves() == tree.live_leaves() == (len(sizes) - 1,)
    (leaf,) = linear.live_leaves()
    assert linear.forest.path_ids(leaf).tobytes() == tree.forest.path_ids(leaf).tobytes()
    for left, right in zip(linear.forest.turns, tree.forest.turns, strict=True):
        assert (left.id, left.parent, left.messages, left.begun_after) == (
            right.id,
            right.parent,
            right.messages,
            right.begun_after,
        )
        assert left.completion.logprobs.tobytes() == right.completion.logprobs.tobytes()
        assert linear.forest.label(left.id) == tree.forest.label(right.id)
