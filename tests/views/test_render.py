"""Sessions as lines of text.

1. The tree has each turn once, in its place; a path without a fork runs straight down, however long it is.
2. Nothing is cut, unless a limit is given; a column that says nothing is left out.
3. No control character of an agent, an engine or a creator reaches the lines.
4. A message is shown with its reasoning, its calls and what else it is made of.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.jsontypes import JsonObject
from turnkeeper.texts import escape_controls
from turnkeeper.views import ShownSession, ShownTurn, explain_session
from turnkeeper.views.message import describe_message
from turnkeeper.views.render import render_explanation, render_rows, render_session, render_tree, render_turn
from turnkeeper.views.session import ToldMessage, TurnContent
from turnkeeper.views.words import count, format_seconds
from viewkit import tell_story


def build_turn(number: int, parent: int | None, **fields: Any) -> ShownTurn:
    known: dict[str, Any] = {
        "label": "extension",
        "cause": "",
        "near": None,
        "difference": None,
        "would_match": "",
        "response_id": "r",
        "finish_reason": "stop",
        "prompt_tokens": 1,
        "added_tokens": 1,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "agent": "",
        "model": "",
        "trainable": None,
        "masked": {},
        "dropped": {},
        "times": {},
        "engine": "",
    }
    return ShownTurn(id=number, parent=parent, **{**known, **fields})


def build_session(*parents: int | None) -> ShownSession:
    turns = tuple(build_turn(number, parent) for number, parent in enumerate(parents))
    return ShownSession(id="s", history="tree", turns=turns)


TREES: dict[str, tuple[tuple[int | None, ...], list[str]]] = {
    "no turn": ((), []),
    "a path": ((None, 0, 1), ["0", "1", "2"]),
    "two roots": ((None, None, 0), ["0", "2", "1"]),
    "a fork": ((None, 0, 0), ["0", "├─ 1", "└─ 2"]),
    "a fork that goes on": ((None, 0, 0, 1, 2), ["0", "├─ 1", "│  3", "└─ 2", "   4"]),
    "a fork in a fork": (
        (None, 0, 0, 1, 1, 2, 2),
        ["0", "├─ 1", "│  ├─ 3", "│  └─ 4", "└─ 2", "   ├─ 5", "   └─ 6"],
    ),
}


@pytest.mark.parametrize(("parents", "lines"), TREES.values(), ids=TREES)
def test_the_tree_shows_where_turns_fork(parents: tuple[int | None, ...], lines: list[str]) -> None:
    assert [line.partition(" extension")[0] for line in render_tree(build_session(*parents))] == lines


def test_a_path_of_many_turns_is_no_deeper_than_one_of_few() -> None:
    lines = render_tree(build_session(None, *range(4999)))
    assert lines[0] == lines[4999].replace("4999", "0")


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=30))
def test_the_tree_has_each_turn_once_behind_its_parent(places: list[float]) -> None:
    parents = [None if at == 0 or place < 0.2 else int(place * at) for at, place in enumerate(places)]
    lines = render_tree(build_session(*parents))
    order = [int(line.lstrip("├─└│ ").split()[0]) for line in lines]
    assert sorted(order) == list(range(len(parents)))
    assert all(parent is None or order.index(parent) < order.index(turn) for turn, parent in enumerate(parents))


async def test_long_texts_are_whole_unless_a_limit_is_given() -> None:
    session = build_session(None)
    content = TurnContent(told=(ToldMessage(role="user", text="x" * 5000),), text="y" * 5000, tokens=())
    turn = replace(session.turns[0], content=content)
    whole = "\n".join(render_turn(turn, limit=None, with_tokens=False))
    assert "x" * 5000 in whole
    assert "y" * 5000 in whole
    cut = "\n".join(render_turn(turn, limit=1000, with_tokens=False))
    assert "x" * 1001 not in cut
    assert cut.count("... 4000 characters more: --full") == 2


NASTY = "\x1b]0;owned\x07 \x9b31m \u202ereversed \r\b \x00 \udcff"


async def test_no_control_character_reaches_the_lines() -> None:
    session = await (await tell_story()).read()
    content = TurnContent(told=(ToldMessage(role=NASTY, text=NASTY),), text=NASTY, tokens=())
    difference = {"message": 1, "field": NASTY, "stored": NASTY, "replayed": NASTY}
    turn = replace(
        session.turns[2], content=content, cause=NASTY, agent=NASTY, model=NASTY, difference=difference, label=NASTY
    )
    nasty = replace(
        session, turns=(*session.turns[:2], turn, *session.turns[3:]), metadata={NASTY: NASTY}, closed=NASTY
    )
    row: JsonObject = {"session_id": NASTY, "turns": 1, "bytes": 0, "metadata": {NASTY: NASTY}, "history": "tree"}
    lines = [
        *render_session(nasty),
        *render_turn(turn, limit=None, with_tokens=True),
        *render_explanation(explain_session(nasty)),
        *render_rows([row]),
    ]
    text = "".join(lines)
    assert "owned" in text
    assert [character for character in text if not character.isprintable()] == []
    assert "\\x1b]0;owned\\x07" in text


ESCAPED = {
    "plain": ("a\tb\nc é 漢 🙂", "a\tb\nc é 漢 🙂"),
    "escape": ("\x1b[31m", "\\x1b[31m"),
    "c1": ("\x9b", "\\x9b"),
    "carriage return": ("a\r", "a\\x0d"),
    "direction": ("\u202e\u2066", "\\u202e\\u2066"),
    "half a pair": ("\ud800", "\\ud800"),
}


@pytest.mark.parametrize(("text", "shown"), ESCAPED.values(), ids=ESCAPED)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert escape_controls(text) == shown


ROW: JsonObject = {"session_id": "s", "turns": 2, "bytes": 3 << 20, "history": "linear", "metadata": {}}


def test_a_column_that_says_nothing_is_left_out() -> None:
    assert render_rows([ROW]) == ["session  turns  MiB  history", "s        2      3    linear"]
    phase = {"phase": "gate", "age_s": 65.0, "phase_age_s": 2.5, "engine": None}
    row = {**ROW, "in_flight": 3, "in_flight_turns": [phase], "metadata": None}
    assert render_rows([row, ROW]) == [
        "session  turns  in flight                        MiB  history  metadata",
        "s        2      gate 2.5 s of 1 min 5 s, 2 more  3    linear   ...",
        "s        2                                       3    linear",
    ]


MESSAGES: dict[str, tuple[JsonObject, str]] = {
    "text": ({"role": "user", "content": "hi"}, "hi"),
    "parts": (
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]},
        "a\n(image_url)\n(part)",
    ),
    "nothing": ({"role": "assistant", "content": None}, ""),
    "an odd content": ({"role": "user", "content": {"a": 1}}, '{"a":1}'),
    "reasoning": ({"content": "a", "reasoning_content": "why"}, "<think>why</think>\na"),
    "a call": ({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}, "f({})  [c]"),
    "an odd call": ({"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}, 3]}, 'f({"x":1})  []\n(call)'),
    "a result": ({"role": "tool", "tool_call_id": "c", "content": "7"}, "(result of c)\n7"),
}


@pytest.mark.parametrize(("message", "shown"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_is_shown_with_all_that_it_says(message: JsonObject, shown: str) -> None:
    assert describe_message(message) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_spans_of_time_are_short(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


def test_things_are_counted_with_their_noun() -> None:
    assert [count(number, "turn") for number in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]
