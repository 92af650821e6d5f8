"""A message at the place of a stored reply.

1. With exactly its call ids, the same names, no other reasoning and text that is equal, trimmed or left out it is the
   reply, whatever its arguments, under `tolerant` and beyond; not under `strict` and `loose_tool_call`, not elsewhere.
2. What the client made of the reply is named, and has a form that its spelling does not change.
3. Under `first` the forms in which turns go on from the reply decide; the stored form is never refused.
4. A leading block of the family's thinking tags is the reasoning, where it says what the stored reasoning says.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sessionkit import assistant, call, user
from turnkeeper.choices import OnRewrittenCalls
from turnkeeper.jsontypes import Message
from turnkeeper.matching import MATCHERS, DifferenceKind, IdPairs, Match, ReplyRules, RewriteKind, normalize
from turnkeeper.matching.matcher import ImportedMatcher

ORDER = ("strict", "loose_tool_call", "tolerant", "role_content_only")
NONE = "none"
TAGS = ReplyRules(thinking_tags=("<think>", "</think>"))

EDIT = '{"file_path":"a.py","old_string":"x","new_string":"y"}'
STORED = assistant("I edit.", reasoning_content="why", tool_calls=[call("Edit", EDIT, "c1"), call("Bash", "{}", "c2")])


def replied(first: Any = EDIT, second: Any = "{}", **changes: Any) -> Message:
    return {**STORED, "tool_calls": [call("Edit", first, "c1"), call("Bash", second, "c2")], **changes}


def match(
    matcher: str,
    replayed: Message,
    stored: Message = STORED,
    *,
    forms: tuple[str, ...] = (),
    rules: ReplyRules = TAGS,
    pairs: IdPairs | None = None,
) -> Match:
    chosen = replace(MATCHERS[matcher], replies=rules)
    return chosen.match_reply(normalize(stored), normalize(replayed), pairs or IdPairs(), forms)


@dataclass(frozen=True)
class Case:
    id: str
    replayed: Message
    first: str
    """The first matcher of the order that accepts it."""
    kinds: tuple[str, ...] = ()
    """What `tolerant` says was rewritten."""
    stored: Message = field(default_factory=lambda: STORED)


BARE = assistant("answer", reasoning_content="\nwhy\n")
ADDED = EDIT[:-1] + ',"replace_all":false}'
IMAGE = {"type": "image_url", "image_url": {"url": "data:1"}}

CASES = (
    Case("as it was", STORED, "strict"),
    Case("a default added", replied(ADDED), "tolerant", ("keys_added",)),
    Case("a default added, as an object", replied({"file_path": "a.py", "all": False}), "tolerant",
         ("keys_added", "keys_removed")),
    Case("a value read from its string", replied(second='{"background":false}'), "tolerant", ("values_retyped",),
         replied(second='{"background":"false"}')),
    Case("a command cut", replied(second='{"command":"ls"}'), "tolerant", ("values_changed",),
         replied(second='{"command":"cd /w && ls"}')),
    Case("arguments cleared", replied("{}"), "tolerant", ("keys_removed",)),
    Case("broken JSON repaired", replied(second="{}"), "tolerant", ("arguments_replaced",), replied(second='{"a": b')),
    Case("the text left out", replied(content=None), "tolerant", ("text_left_out",)),
    Case("the text left out, the key too", {k: v for k, v in STORED.items() if k != "content"}, "tolerant",
         ("text_left_out",)),
    Case("the text trimmed", replied(content="I edit."), "tolerant", ("text_trimmed",), replied(content="\nI edit.\n")),
    Case("text of white space left out", replied(content=""), "tolerant", ("text_trimmed",), replied(content="\n\n")),
    Case("everything at once", replied(ADDED, '{"a":1}', content=" ", reasoning_content=None), "tolerant",
         ("keys_added", "values_retyped", "text_left_out"), replied(second='{"a":"1"}')),
    Case("the reasoning left out beside other arguments", replied(ADDED, reasoning_content=None), "tolerant",
         ("keys_added",)),
    Case("other reasoning beside other arguments", replied(ADDED, reasoning_content="because"), "role_content_only"),
    Case("reasoning made up", replied(ADDED, reasoning_content="r"), "role_content_only",
         stored=replied(reasoning_content=None)),
    Case("other text", replied(ADDED, content="I write."), NONE),
    Case("half the text", replied(ADDED, content="I"), NONE),
    Case("another name", replied(ADDED, tool_calls=[call("Write", ADDED, "c1"), call("Bash", "{}", "c2")]),
         "role_content_only"),
    Case("a call left out", replied(tool_calls=[call("Edit", ADDED, "c1")]), "role_content_only"),
    Case("a call more", replied(tool_calls=[*STORED["tool_calls"], call("Bash", "{}", "c3")]), "role_content_only"),
    Case("the calls in another order", replied(tool_calls=STORED["tool_calls"][::-1]), "role_content_only"),
    Case("one id renamed", replied(tool_calls=[call("Edit", ADDED, "c1"), call("Bash", "{}", "x")]),
         "role_content_only"),
    Case("no ids, but other arguments", assistant("a", tool_calls=[call("f", '{"a":1}', "")]), "role_content_only",
         stored=assistant("a", tool_calls=[call("f", "{}", "")])),
    Case("one call without an id", assistant("a", tool_calls=[call("f", '{"a":1}', "c"), call("f", "{}", "")]),
         "role_content_only", stored=assistant("a", tool_calls=[call("f", "{}", "c"), call("f", "{}", "")])),
    Case("a reply without calls trimmed", assistant("a"), NONE, stored=assistant("a ")),
    Case("a reply without calls left out", assistant(""), NONE, stored=assistant("a")),
    Case("another role", {**replied(ADDED), "role": "user"}, NONE),
    Case("an image beside the calls", replied(ADDED, content=["I edit.", IMAGE]), NONE),
    Case("reasoning in the content", assistant("<think>\nwhy\n</think>\n\nanswer"), "tolerant", stored=BARE),
    Case("reasoning in the content, tight", assistant("<think>why</think>answer"), "tolerant", stored=BARE),
    Case("reasoning in the content, white space before", assistant("\n<think>why</think>answer"), "tolerant",
         stored=BARE),
    Case("reasoning in parts of content", {**BARE, "content": ["<think>why</think>", "answer"]}, "tolerant",
         stored=BARE),
    Case("reasoning in both places", assistant("<think>why</think>answer", reasoning="why"), "tolerant", stored=BARE),
    Case("a text that begins with white space", assistant("<think>why</think>\n\nanswer"), "tolerant",
         stored=assistant("\n\nanswer", reasoning="why")),
    Case("empty thinking of a reply without reasoning", assistant("<think>\n\n</think>\n\nanswer"), "tolerant",
         stored=assistant("answer")),
    Case("reasoning in the content and nothing else", replied(content="<think>why</think>"), "tolerant",
         stored=replied(content="")),
    Case("reasoning in the content of other arguments", replied(ADDED, content="<think>why</think>\n\nI edit.",
         reasoning_content=None), "tolerant", ("keys_added",)),
    Case("reasoning in the content of a reply without its text", replied(content="<think>why</think>"), "tolerant",
         ("text_left_out",)),
    Case("reasoning in the content, ids renamed", replied(content="<think>why</think>I edit.", tool_calls=[
         call("Edit", EDIT, "x"), call("Bash", "{}", "y")]), "tolerant"),
    Case("other reasoning in the content", assistant("<think>because</think>answer"), NONE, stored=BARE),
    Case("other reasoning in both places", assistant("<think>why</think>answer", reasoning="x"), NONE, stored=BARE),
    Case("empty thinking of a reply that had reasoning", assistant("<think></think>answer"), NONE, stored=BARE),
    Case("another text behind the reasoning", assistant("<think>why</think>other"), NONE, stored=BARE),
    Case("a text trimmed behind the reasoning", assistant("<think>why</think>answer"), NONE,
         stored=assistant("answer\n", reasoning="why")),
    Case("thinking that is not closed", assistant("<think>why answer"), NONE, stored=BARE),
    Case("thinking that does not lead", assistant("answer<think>why</think>"), NONE, stored=BARE),
    Case("thinking in other tags", assistant("<thinking>why</thinking>answer"), NONE, stored=BARE),
    Case("thinking before an image", {**BARE, "content": ["<think>why</think>answer", IMAGE]}, NONE,
         stored={**BARE, "content": ["answer", IMAGE]}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_matcher_accepts_at_the_place_of_a_reply_what_the_table_says(case: Case) -> None:
    accepting = [name for name in ORDER if match(name, case.replayed, case.stored).is_match]
    assert accepting == ([] if case.first == NONE else list(ORDER[ORDER.index(case.first) :]))
    rewrite = match("tolerant", case.replayed, case.stored).rewrite
    assert (rewrite.kinds if rewrite else ()) == case.kinds


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_where_no_reply_stands_a_rewritten_message_is_another_one(case: Case) -> None:
    is_match = MATCHERS["tolerant"].match(normalize(case.stored), normalize(case.replayed), IdPairs()).is_match
    is_dressed = "<think>" in str(case.replayed.get("content", ""))
    expected = case.first in ORDER[:3] and not case.kinds and not is_dressed
    assert is_match is expected


def test_a_family_without_thinking_tags_has_no_reasoning_in_content() -> None:
    dressed = assistant("<think>why</think>answer")
    assert not match("tolerant", dressed, BARE, rules=ReplyRules()).is_match
    other_tags = ReplyRules(thinking_tags=("[THINK]", "[/THINK]"))
    assert not match("tolerant", dressed, BARE, rules=other_tags).is_match
    assert match("tolerant", assistant("[THINK]why[/THINK]answer"), BARE, rules=other_tags).is_match


def test_an_id_that_was_renamed_on_the_path_takes_the_proof_from_all_ids() -> None:
    pairs = IdPairs()
    pairs.bind("c0", "c0")
    assert match("tolerant", replied(ADDED), pairs=pairs).is_match
    pairs = IdPairs()
    pairs.bind("c0", "x")
    assert not match("tolerant", replied(ADDED), pairs=pairs).is_match
    assert match("tolerant", STORED, pairs=pairs).is_match


def test_the_ids_of_a_reply_known_by_them_are_taken_for_the_rest_of_the_path() -> None:
    pairs = IdPairs()
    match("tolerant", replied(ADDED), pairs=pairs)
    assert dict(pairs.stored_of) == {"c1": "c1", "c2": "c2"}


def form_of(replayed: Message, stored: Message = STORED) -> str:
    rewrite = match("tolerant", replayed, stored).rewrite
    assert rewrite is not None
    return rewrite.form


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replied('{"replace_all": false, ' + EDIT[1:]), id="keys in another order"),
        pytest.param(replied(ADDED, ""), id="no arguments for the empty object"),
        pytest.param(replied(ADDED, reasoning_content=None), id="without reasoning"),
        pytest.param(replied(ADDED, content="I edit.\n"), id="text with a newline"),
        pytest.param(replied(ADDED, content="<think>why</think>I edit."), id="reasoning in the content"),
    ],
)
def test_a_form_is_one_in_every_spelling(other: Message) -> None:
    assert form_of(other) == form_of(replied(ADDED)) != ""


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replied(EDIT[:-1] + ',"replace_all":true}'), id="another value"),
        pytest.param(replied(ADDED, '{"a":1}'), id="another call's arguments"),
        pytest.param(replied(ADDED, content=""), id="without its text"),
        pytest.param(replied(content=""), id="without its text and default"),
        pytest.param(replied("{}", ADDED), id="arguments of the other call"),
    ],
)
def test_other_values_and_other_text_are_another_form(other: Message) -> None:
    assert form_of(other) != form_of(replied(ADDED))


def test_text_that_was_only_trimmed_is_the_stored_form() -> None:
    assert form_of(replied(content="I edit."), replied(content="I edit.\n")) == ""


@pytest.mark.parametrize("choice", OnRewrittenCalls)
@pytest.mark.parametrize("known", ["nothing", "the stored form", "this form", "another form", "both"])
def test_the_forms_that_turns_brought_decide_which_may_come(choice: OnRewrittenCalls, known: str) -> None:
    this = form_of(replied(ADDED))
    forms = {"nothing": (), "the stored form": ("",), "this form": (this,), "another form": ("f",), "both": ("f", this)}
    rules = replace(TAGS, on_rewritten_calls=choice)
    given = match("tolerant", replied(ADDED), forms=forms[known], rules=rules)
    is_known = known in ("nothing", "this form", "both")
    assert given.is_match is (choice is OnRewrittenCalls.ALWAYS or (choice is OnRewrittenCalls.FIRST and is_known))
    kind = DifferenceKind.ARGUMENTS
    if choice is OnRewrittenCalls.FIRST and not is_known:
        kind = DifferenceKind.OTHER_FORM
    assert [(each.kind, each.field) for each in given.differences] == [(kind, "tool_calls[0].arguments")]
    for stored_form in (STORED, replied(EDIT.replace(":", ": ")), replied(reasoning_content=None)):
        assert match("tolerant", stored_form, forms=forms[known], rules=rules).is_match


def test_text_that_was_trimmed_may_come_whatever_the_first_request_brought() -> None:
    stored = replied(content="I edit.\n")
    assert match("tolerant", replied(), stored, forms=("f",)).is_match
    assert not match("tolerant", replied(), stored, rules=ReplyRules(on_rewritten_calls=OnRewrittenCalls.FORK)).is_match


def test_a_match_by_ids_tells_every_difference() -> None:
    given = match("tolerant", replied(ADDED, content="<think>why</think>", reasoning_content=""))
    assert [(str(each.kind), each.field) for each in given.differences] == [
        ("reasoning_in_content", "content"),
        ("content_trimmed", "content"),
        ("arguments", "tool_calls[0].arguments"),
    ]
    assert given.rewrite is not None
    assert given.rewrite.kinds == (RewriteKind.KEYS_ADDED, RewriteKind.TEXT_LEFT_OUT)


def test_a_function_by_import_path_decides_alone_also_about_replies() -> None:
    def same_names(stored: Message, replayed: Message) -> bool:
        return [each["function"]["name"] for each in stored["tool_calls"]] == [
            each["function"]["name"] for each in replayed["tool_calls"]
        ]

    matcher, pairs = ImportedMatcher(name="tests.same_names", function=same_names), IdPairs()
    renamed = replied(tool_calls=[call("Edit", ADDED, "x"), call("Bash", "{}", "c2")])
    given = matcher.match_reply(normalize(STORED), normalize(renamed), pairs, ("f",))
    assert (given.is_match, given.rewrite) == (True, None)
    assert dict(pairs.stored_of) == {"x": "c1", "c2": "c2"}
    fewer = replied(tool_calls=[call("Edit", EDIT, "c1")])
    assert not matcher.match_reply(normalize(STORED), normalize(fewer), IdPairs(), ()).is_match


def test_other_messages_than_assistants_have_no_place_of_a_reply() -> None:
    assert not match("tolerant", user(""), user("u")).is_match
