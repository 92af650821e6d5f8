"""Whether a replayed message is the stored one.

1. The table: what each matcher accepts. Each accepts all that the one before accepts.
2. Call ids may be renamed one for one, along a whole path.
3. A function by import path decides alone, and is held to its contract.
4. What differs is named: the kind, the field, both values cut to an excerpt.
5. Equal messages have equal digests, and share one.
6. The settings beyond a matcher's are listed nearest first.
7. A form that comes again is not compared again.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from sessionkit import assistant, call, tool, user
from turnkeeper.errors import ConfigError, MatcherError
from turnkeeper.jsontypes import Message
from turnkeeper.matching import (
    MATCHERS,
    DifferenceKind,
    IdPairs,
    NormalMessage,
    ReplyRules,
    list_differences,
    list_looser,
    load_matcher,
    normalize,
)

ORDER = ("strict", "loose_tool_call", "tolerant", "role_content_only")
NONE = "none"


@dataclass(frozen=True)
class Case:
    id: str
    stored: Message
    replayed: Message
    first: str
    """The first matcher of the order that accepts it."""


def calls(arguments: Any, call_id: str = "c0", name: str = "f", **more: Any) -> Message:
    return assistant("", tool_calls=[{**call(name, arguments, call_id), **more}])


REASONED = assistant("a", reasoning_content="\nwhy\n")
IMAGE = {"type": "image_url", "image_url": {"url": "data:1"}}

CASES = (
    Case("equal", user("u"), user("u"), "strict"),
    Case("another text", user("u"), user("U"), NONE),
    Case("another space", user("u"), user("u "), NONE),
    Case("another role", user("u"), tool("u", ""), NONE),
    Case("null content", assistant(""), {"role": "assistant", "content": None}, "strict"),
    Case("no content", assistant(""), {"role": "assistant"}, "strict"),
    Case("an empty list of parts", assistant(""), {"role": "assistant", "content": []}, "strict"),
    Case("empty text parts", assistant(""), {"role": "assistant", "content": [{"type": "text", "text": ""}]}, "strict"),
    Case(
        "a null text part", assistant(""), {"role": "assistant", "content": [{"type": "text", "text": None}]}, "strict"
    ),
    Case("no tool calls", assistant("a"), assistant("a", tool_calls=[]), "strict"),
    Case("null keys", assistant("a"), assistant("a", tool_calls=None, reasoning_content=None, refusal=None), "strict"),
    Case("text parts", user("ab"), {"role": "user", "content": [{"type": "text", "text": x} for x in "ab"]}, "strict"),
    Case("parts that are strings", user("ab"), {"role": "user", "content": ["a", "b"]}, "strict"),
    Case("other text parts", user("ab"), {"role": "user", "content": [{"type": "text", "text": "a"}]}, NONE),
    Case(
        "an image",
        {"role": "user", "content": [IMAGE]},
        {"role": "user", "content": [dict(reversed(IMAGE.items()))]},
        "strict",
    ),
    Case("an image added", user("u"), {"role": "user", "content": [{"type": "text", "text": "u"}, IMAGE]}, NONE),
    Case("an image moved", {"role": "user", "content": ["u", IMAGE]}, {"role": "user", "content": [IMAGE, "u"]}, NONE),
    Case("content that is no text", {"role": "user", "content": {"a": 1}}, {"role": "user", "content": {"a": 2}}, NONE),
    Case("a part without type", {"role": "user", "content": [5]}, {"role": "user", "content": ["5"]}, NONE),
    Case("a text part of another type", user("5"), {"role": "user", "content": [{"type": "text", "text": 5}]}, NONE),
    Case("the other name of reasoning", assistant("a", reasoning="r"), assistant("a", reasoning_content="r"), "strict"),
    Case(
        "both names of reasoning",
        assistant("a", reasoning="r"),
        assistant("a", reasoning="r", reasoning_content="r"),
        "strict",
    ),
    Case("reasoning left out", REASONED, assistant("a"), "tolerant"),
    Case("reasoning trimmed", REASONED, assistant("a", reasoning_content="why"), "tolerant"),
    Case("reasoning of blanks", REASONED, assistant("a", reasoning_content=" \n"), "tolerant"),
    Case("other reasoning", REASONED, assistant("a", reasoning_content="because"), "role_content_only"),
    Case(
        "half the reasoning", assistant("a", reasoning="one two"), assistant("a", reasoning="one"), "role_content_only"
    ),
    Case("reasoning made up", assistant("a"), assistant("a", reasoning_content="r"), "role_content_only"),
    Case("wire-only keys", calls("{}"), calls("{}", index=0, extra={"sdk": 1}), "strict"),
    Case(
        "no type on a call",
        calls("{}"),
        assistant("", tool_calls=[{"id": "c0", "function": {"name": "f", "arguments": "{}"}}]),
        "strict",
    ),
    Case("arguments spelled otherwise", calls('{"a":  1}'), calls('{"a":1}'), "loose_tool_call"),
    Case("keys in another order", calls('{"a":1,"b":2}'), calls('{"b":2,"a":1}'), "loose_tool_call"),
    Case("arguments as an object", calls('{"a":1}'), calls({"a": 1}), "strict"),
    Case("no arguments", calls("{}"), calls(None), "loose_tool_call"),
    Case("other arguments", calls('{"a":1}'), calls('{"a":2}'), "role_content_only"),
    Case("another function", calls("{}"), calls("{}", name="g"), "role_content_only"),
    Case(
        "a call more",
        calls("{}"),
        assistant("", tool_calls=[call("f", "{}"), call("g", "{}", "c1")]),
        "role_content_only",
    ),
    Case("the calls left out", calls("{}"), assistant(""), "role_content_only"),
    Case("a call renamed", calls("{}"), calls("{}", "x"), "tolerant"),
    Case("a result renamed", tool("r"), tool("r", "x"), "tolerant"),
    Case("a call that lost its id", calls("{}"), calls("{}", ""), "role_content_only"),
    Case("a result that lost its id", tool("r"), {"role": "tool", "content": "r"}, "role_content_only"),
    Case(
        "calls that are no list",
        assistant("", tool_calls={"a": 1}),
        assistant("", tool_calls={"a": 2}),
        "role_content_only",
    ),
    Case("a call that is no object", assistant("", tool_calls=["x"]), assistant("", tool_calls=["x"]), "strict"),
    Case(
        "a call without function",
        assistant("", tool_calls=[{"id": "c", "name": "f"}]),
        assistant("", tool_calls=[{"id": "c", "name": "g"}]),
        "role_content_only",
    ),
    Case("lone surrogates", user("a\ud83d b"), user("a\ud83d b"), "strict"),
    Case("another lone surrogate", user("a\ud83d b"), user("a\ud83c b"), NONE),
)


def accepts(matcher: str, stored: Message, replayed: Message) -> bool:
    return MATCHERS[matcher].match(normalize(stored), normalize(replayed), IdPairs()).is_match


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_messages_are_equal_where_their_digests_are(case: Case) -> None:
    are_digests_equal = normalize(case.stored).digest == normalize(case.replayed).digest
    assert normalize(case.replayed).equals(normalize(case.stored)) is are_digests_equal
    assert are_digests_equal is (case.first == "strict")


def test_an_equal_message_takes_over_the_digest() -> None:
    stored, replayed = normalize(user("u")), normalize(user("u"))
    assert replayed.equals(stored)
    assert replayed.digest is stored.digest


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_matcher_accepts_what_the_table_says(case: Case) -> None:
    accepting = [name for name in ORDER if accepts(name, case.stored, case.replayed)]
    expected = [] if case.first == NONE else list(ORDER[ORDER.index(case.first) :])
    assert accepting == expected


def test_the_matchers_stand_in_their_order() -> None:
    assert tuple(MATCHERS) == ORDER
    for before, after in pairwise(ORDER):
        assert MATCHERS[before].accepted < MATCHERS[after].accepted


def path_matches(matcher: str, *pairs_of: tuple[Message, Message]) -> bool:
    pairs = IdPairs()
    return all(
        MATCHERS[matcher].match(normalize(stored), normalize(replayed), pairs).is_match for stored, replayed in pairs_of
    )


def two_calls(first: str, second: str) -> Message:
    return assistant("", tool_calls=[call("f", "{}", first), call("g", "{}", second)])


@pytest.mark.parametrize(
    ("replayed", "is_match"),
    [
        pytest.param((two_calls("x", "y"), tool("1", "x"), tool("2", "y")), True, id="renamed throughout"),
        pytest.param((two_calls("b", "a"), tool("1", "b"), tool("2", "a")), True, id="names exchanged throughout"),
        pytest.param((two_calls("x", "y"), tool("1", "y"), tool("2", "x")), False, id="results answer the other call"),
        pytest.param((two_calls("x", "x"), tool("1", "x"), tool("2", "x")), False, id="one name for two"),
        pytest.param((two_calls("x", "y"), tool("1", "a"), tool("2", "b")), False, id="only the calls renamed"),
        pytest.param((two_calls("a", "x"), tool("1", "a"), tool("2", "x")), True, id="one renamed"),
        pytest.param((two_calls("a", "b"), tool("1", "b"), tool("2", "a")), False, id="results exchanged, no name new"),
    ],
)
def test_call_ids_are_renamed_one_for_one(replayed: tuple[Message, ...], is_match: bool) -> None:
    stored = (two_calls("a", "b"), tool("1", "a"), tool("2", "b"))
    assert path_matches("tolerant", *zip(stored, replayed, strict=True)) is is_match
    assert path_matches("role_content_only", *zip(stored, replayed, strict=True))
    same_text = all(left == right for left, right in zip(stored, replayed, strict=True))
    assert path_matches("loose_tool_call", *zip(stored, replayed, strict=True)) is same_text


def test_ids_that_come_back_unchanged_are_taken_for_the_rest_of_the_path() -> None:
    assert not path_matches("tolerant", (tool("1", "a"), tool("1", "a")), (tool("2", "b"), tool("2", "a")))


def test_an_undone_binding_is_forgotten() -> None:
    pairs = IdPairs()
    pairs.bind("a", "a")
    mark = pairs.mark()
    assert pairs.bind("b", "x")
    assert pairs.renamed == 1
    pairs.undo(mark)
    assert pairs.renamed == 0
    assert pairs.bind("b", "y")
    assert dict(pairs.stored_of) == {"a": "a", "y": "b"}


def same_role(stored: Message, replayed: Message) -> bool:
    return stored["role"] == replayed["role"]


def answers_one(stored: Message, replayed: Message) -> int:
    return 1


def raises(stored: Message, replayed: Message) -> bool:
    raise KeyError("content")


async def waits(stored: Message, replayed: Message) -> bool:
    return True


def test_a_function_by_import_path_decides_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = importable(monkeypatch, same_role)
    pairs = IdPairs()
    other = matcher.match(normalize(user("u")), normalize(user("v")), pairs)
    assert other.is_match
    assert [each.kind for each in other.differences] == [DifferenceKind.CONTENT]
    assert matcher.match(normalize(user("u")), normalize(user("u")), pairs).differences == ()
    refused = matcher.match(normalize(user("u")), normalize(assistant("u")), pairs)
    assert [each.kind for each in refused.differences] == [DifferenceKind.ROLE]


def test_a_function_may_refuse_equal_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = importable(monkeypatch, lambda stored, replayed: False)
    match = matcher.match(normalize(user("u")), normalize(user("u")), IdPairs())
    assert not match.is_match
    assert [each.kind for each in match.differences] == [DifferenceKind.OTHER]


@pytest.mark.parametrize(
    ("function", "named"),
    [pytest.param(answers_one, "must return a bool, it returned int"), pytest.param(raises, "raised KeyError")],
)
def test_a_function_that_breaks_its_contract_is_an_error(
    monkeypatch: pytest.MonkeyPatch, function: Any, named: str
) -> None:
    matcher = importable(monkeypatch, function)
    with pytest.raises(MatcherError, match=named):
        matcher.match(normalize(user("u")), normalize(user("u")), IdPairs())


def importable(monkeypatch: pytest.MonkeyPatch, function: Any) -> Any:
    import sessionkit

    monkeypatch.setattr(sessionkit, "matches", function, raising=False)
    return load_matcher("sessionkit.matches")


@pytest.mark.parametrize("name", ORDER)
def test_a_built_in_matcher_is_found_by_its_name(name: str) -> None:
    assert load_matcher(name) == MATCHERS[name]


@pytest.mark.parametrize(
    ("selector", "named"),
    [
        pytest.param("lose", "cannot be imported", id="a misspelt name"),
        pytest.param("", "cannot be imported", id="nothing"),
        pytest.param("no_such_module.function", "No module named", id="no module"),
        pytest.param("json.no_such_function", "no_such_function", id="no function"),
        pytest.param("json.decoder.NaN", "not a function", id="a value"),
        pytest.param(".x", "cannot be imported", id="no module name"),
    ],
)
def test_what_is_no_matcher_is_refused_with_the_names_there_are(selector: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refusal:
        load_matcher(selector)
    assert "--session-message-matcher" in str(refusal.value)
    assert all(name in str(refusal.value) for name in ORDER)


def test_a_coroutine_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="coroutine"):
        importable(monkeypatch, waits)


def test_a_difference_names_message_field_and_an_excerpt_of_both_values() -> None:
    long = "x" * 500
    stored, replayed = normalize(user(long + "stored" + long)), normalize(user(long + "replayed" + long))
    (difference,) = list_differences(stored, replayed)
    cut = difference.at(3)
    assert cut.index == 3
    assert re.fullmatch("…x+storedx+…", cut.stored)
    assert "replayed" in cut.replayed
    assert max(len(cut.stored), len(cut.replayed)) <= 122
    assert cut.to_json() == {
        "message": 3,
        "field": "content",
        "kind": "content",
        "stored": cut.stored,
        "replayed": cut.replayed,
    }
    assert cut.describe().startswith("message 3, content: stored '…x")


def test_an_excerpt_of_a_value_that_differs_at_its_start_has_nothing_before_it() -> None:
    (difference,) = list_differences(normalize(user("a" + "x" * 500)), normalize(user("b")))
    cut = difference.at(0)
    assert cut.stored == "a" + "x" * 119 + "…"
    assert cut.replayed == "b"


def test_a_form_that_comes_again_is_not_compared_again() -> None:
    compared: list[str] = []

    def compare(stored: NormalMessage, replayed: NormalMessage) -> str:
        compared.append(replayed.content)
        return f"{stored.content} {replayed.content}"

    stored = normalize(user("u"))
    told = [stored.recall(compare, normalize(user(text))) for text in ("a", "a", "b", "b", "a")]
    assert told == ["u a", "u a", "u b", "u b", "u a"]
    assert compared == ["a", "b", "a"]
    assert stored.recall(lambda left, right: left.content, normalize(user("a"))) == "u"


def test_what_a_form_is_compared_with_is_its_own_stored_message() -> None:
    one, other = normalize(calls('{"a": 1}')), normalize(calls('{"a":2}'))
    replayed = normalize(calls('{"a":1}'))
    for _ in range(2):
        assert [each.kind for each in list_differences(one, replayed)] == [DifferenceKind.ARGUMENTS_SPELLING]
        assert [each.kind for each in list_differences(other, replayed)] == [DifferenceKind.ARGUMENTS]


@pytest.mark.parametrize(
    ("matcher", "settings"),
    [
        ("strict", ["loose_tool_call", "tolerant", "role_content_only"]),
        ("loose_tool_call", ["tolerant", "role_content_only"]),
        ("tolerant", ["always", "role_content_only"]),
        ("role_content_only", ["always"]),
    ],
)
def test_the_settings_beyond_a_matchers_are_listed_nearest_first(matcher: str, settings: list[str]) -> None:
    rules = ReplyRules(thinking_tags=("<t>", "</t>"))
    looser = list(list_looser(load_matcher(matcher, rules)))
    assert [setting.split()[1] for setting, _ in looser] == settings
    assert {each.replies.thinking_tags for _, each in looser} == {("<t>", "</t>")}


def test_equal_messages_have_no_difference() -> None:
    assert list_differences(normalize(user("u")), normalize(user("u"))) == ()


def test_the_call_ids_of_a_message_are_those_of_its_calls_and_of_what_it_answers() -> None:
    assert normalize(two_calls("a", "b")).call_ids == ("a", "b")
    assert normalize(tool("r", "x")).call_ids == ("x",)
