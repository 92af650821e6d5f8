"""Which leaves an agent went back over.

1. A leaf is rolled back by a later sibling of the same agent that was asked after its reply was there, and that was
   delivered or continued; roots are siblings where they ask the same. The cause says how the later request differs.
2. A leaf that was never delivered is rolled back by nothing.
3. Side requests, other agents, overlapping turns and turns that nobody received roll nothing back; parallel leaves
   are never rolled back.
4. Over random histories: what an oracle finds that reads the history as it was told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.builders import TREE, Story
from sessionkit import assistant, tool, user
from turnkeeper.core import Turn
from turnkeeper.samples import view_session
from turnkeeper.samples.rollback import find_rollbacks

SUB = {"x-claude-code-agent-id": "a7"}
SUMMARY = (
    "The user wants the login page mended. The redirect after a failed login drops the session cookie, "
    "and tests/test_login.py shows it. Next: set the cookie before the redirect, then run the tests again."
)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    tell: Callable[[Story], object]
    found: dict[int, str]
    """``cause`` or ``cause by turn``, by leaf."""


def _root(story: Story) -> Turn:
    return story.say([1], [10], text="mend the login page", reply="calling a tool")


def _retry(story: Story, messages: Sequence[dict[str, object]], **fields: object) -> None:
    """Turn 1 answers a tool result, turn 2 comes in its place."""
    root = _root(story)
    story.say([2], [11], after=root, messages=[tool("ok")], reply="no format")
    story.say([3], [12], after=root, messages=messages, **fields)  # pyright: ignore[reportArgumentType]


def _compaction(story: Story, *opening: object, reply: str = SUMMARY, headers: dict[str, str] | None = None) -> None:
    """Turn 1 is the agent's last word, turn 2 a summary that leaves it out, turn 3 opens with what is given."""
    root = _root(story)
    story.say([2], [11], after=root, messages=[tool("ok")], reply="all done")
    asked = [tool("ok"), user("Summarise the conversation so far")]
    story.say([3], [12], after=root, messages=asked, reply=reply, headers=headers)
    story.say([4], [13], messages=list(opening))  # pyright: ignore[reportArgumentType]


def _twins(story: Story, *, delivered: bool, after: Turn | None = None, **fields: object) -> Turn:
    first = story.say([2], [11], after=after, text="again")
    story.say([2], [12], after=after, text="again", delivered=delivered, **fields)  # pyright: ignore[reportArgumentType]
    return first


def _overlap(story: Story, first: str, second: str) -> None:
    root = _root(story)
    pending = [story.begin(root, first), story.begin(root, second)]
    for number, each in enumerate(pending):
        story.commit(each, [2], [11 + number])


def _continued_twin(story: Story) -> None:
    root = _root(story)
    story.say([2], [11], after=root, text="again")
    lost = story.say([2], [12], after=root, text="again", delivered=False)
    story.say([3], [13], after=lost)


def _lost_twin_between(story: Story) -> None:
    root = _root(story)
    _twins(story, delivered=False, after=root)
    story.say([2], [13], after=root, text="again")


def _repeated_retry(story: Story) -> None:
    """Turn 1 is rejected; 2 and 3 ask again in the same words, and 2 never arrives."""
    root = _root(story)
    story.say([2], [11], after=root, messages=[tool("ok")])
    story.say([3], [12], after=root, messages=[tool("ok"), user("format!")], delivered=False)
    story.say([3], [13], after=root, messages=[tool("ok"), user("format!")])


def _started_anew(story: Story) -> None:
    """Turn 2 came in the place of 1; then the history was written into another root, question and reply."""
    root = _root(story)
    story.say([2], [11], after=root, messages=[tool("ok")], reply="no format")
    story.say([3], [12], after=root, messages=[tool("ok"), user("format!")], reply=SUMMARY)
    history = [user("mend it"), assistant("calling a tool"), tool("ok"), user("format!"), assistant(SUMMARY)]
    story.say([4], [13], messages=[*history, user("go on")])


def _branch_opens(story: Story) -> None:
    """A harness that keeps the beginning of its history goes on from turn 0 with the summary."""
    root = _root(story)
    second = story.say([2], [11], after=root, messages=[tool("ok")])
    story.say([3], [12], after=second, messages=[tool("more")], reply="all done")
    story.say([4], [13], after=second, messages=[tool("more"), user("Summarise")], reply=SUMMARY)
    story.say([5], [14], after=root, messages=[user(f"So far: {SUMMARY}")])


CASES = (
    Case(id="nothing came after", tell=_root, found={}),
    Case(
        id="a format error asked for again",
        tell=lambda story: _retry(story, [tool("ok"), user("format!")]),
        found={1: "reply_left_out by 2"},
    ),
    Case(
        id="the same asked again",
        tell=lambda story: _retry(story, [tool("ok")]),
        found={1: "superseded by 2"},
    ),
    Case(
        id="another tool result",
        tell=lambda story: _retry(story, [tool("a later run")]),
        found={1: "input_changed by 2"},
    ),
    Case(
        id="a reply rewritten",
        tell=lambda story: _retry(story, [tool("ok"), assistant("something else"), user("go on")]),
        found={1: "reply_rewritten by 2"},
    ),
    Case(
        id="the later turn never arrived",
        tell=lambda story: _retry(story, [tool("ok"), user("format!")], delivered=False),
        found={2: "undelivered"},
    ),
    Case(id="equal roots", tell=lambda story: _twins(story, delivered=True), found={0: "superseded by 1"}),
    Case(
        id="equal roots, the second never delivered",
        tell=lambda story: _twins(story, delivered=False),
        found={1: "undelivered"},
    ),
    Case(
        id="equal siblings, the second never delivered",
        tell=lambda story: _twins(story, delivered=False, after=_root(story)),
        found={2: "undelivered"},
    ),
    Case(
        id="equal siblings, the second of another agent",
        tell=lambda story: _twins(story, delivered=True, after=_root(story), headers=SUB),
        found={},
    ),
    Case(
        id="equal roots, the second of another agent",
        tell=lambda story: _twins(story, delivered=True, headers=SUB),
        found={},
    ),
    Case(id="a twin that was continued was received", tell=_continued_twin, found={1: "superseded by 2"}),
    Case(id="the third twin", tell=_lost_twin_between, found={1: "superseded by 3", 2: "undelivered"}),
    Case(
        id="the first that arrived in the same words",
        tell=_repeated_retry,
        found={1: "reply_left_out by 3", 2: "undelivered"},
    ),
    Case(
        id="a sub-agent's branch",
        tell=lambda story: _retry(story, [tool("ok"), user("a title, please")], headers=SUB),
        found={},
    ),
    Case(
        id="a sub-agent's branch that goes on",
        tell=lambda story: story.say([4], [14], after=_branch_of_sub_agent(story), headers=SUB),
        found={},
    ),
    Case(id="asked at once, in equal words", tell=lambda story: _overlap(story, "a", "a"), found={}),
    Case(id="asked at once, in other words", tell=lambda story: _overlap(story, "a", "b"), found={}),
    Case(
        id="a compaction, its summary wrapped",
        tell=lambda story: _compaction(story, user(f"This session continues another. {SUMMARY}\nGo on from there.")),
        found={},
    ),
    Case(
        id="a compaction, its analysis cut away",
        tell=lambda story: _compaction(
            story,
            user(f"Summary:\n{SUMMARY}"),
            reply=f"<analysis>First I read the login page, then its tests.</analysis>\n<summary>{SUMMARY}</summary>",
        ),
        found={},
    ),
    Case(
        id="a compaction in text parts behind a system message",
        tell=lambda story: _compaction(
            story,
            {"role": "system", "content": "You mend pages."},
            {"role": "user", "content": [{"type": "text", "text": "Before:"}, {"type": "text", "text": SUMMARY}]},
        ),
        found={},
    ),
    Case(
        id="a compaction that stands as the assistant's own words",
        tell=lambda story: _compaction(story, user("mend it"), assistant(SUMMARY), user("go on")),
        found={},
    ),
    Case(
        id="a title of three words",
        tell=lambda story: _compaction(story, user("Session: Mend login redirect"), reply="Mend login redirect"),
        found={},
    ),
    Case(
        id="a title in JSON",
        tell=lambda story: _compaction(
            story, user("# Mend the login page\nGo on."), reply='{"title": "Mend the login page", "icon": null}'
        ),
        found={},
    ),
    Case(
        id="a summary in JSON, its lines escaped",
        tell=lambda story: _compaction(
            story,
            user("Facts so far\n- the cookie is lost\n- the redirect comes first\n- see tests/test_login.py"),
            reply='{"facts": ["the cookie is lost\\n- the redirect comes first\\n", "see tests/test_login.py"]}',
        ),
        found={},
    ),
    Case(
        id="a reply that begins like JSON",
        tell=lambda story: _compaction(story, user("Go on: {the cookie is lost}"), reply="{the cookie is lost}"),
        found={},
    ),
    Case(
        id="JSON without text",
        tell=lambda story: _compaction(story, user("next"), reply='{"done": true}'),
        found={1: "reply_left_out by 2"},
    ),
    Case(id="a compaction that a branch opens with", tell=_branch_opens, found={}),
    Case(
        id="a later root that has nothing of the reply",
        tell=lambda story: _compaction(story, user("What is the capital of Malta?")),
        found={1: "reply_left_out by 2"},
    ),
    Case(
        id="a later root that shares a few words",
        tell=lambda story: _compaction(story, user("Is the login page mended? Then run the tests again.")),
        found={1: "reply_left_out by 2"},
    ),
    Case(
        id="a reply without text",
        tell=lambda story: _compaction(story, user("next"), reply="..."),
        found={1: "reply_left_out by 2"},
    ),
    Case(id="a history that was started anew", tell=_started_anew, found={1: "reply_left_out by 2"}),
)


def _branch_of_sub_agent(story: Story) -> Turn:
    root = _root(story)
    story.say([2], [11], after=root, messages=[tool("ok")])
    return story.say([3], [12], after=root, messages=[user("you are a reviewer")], headers=SUB)


def _find(story: Story) -> dict[int, str]:
    found = find_rollbacks(view_session(story.session))
    return {leaf: f"{each.cause}" + ("" if each.by is None else f" by {each.by}") for leaf, each in found.items()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_leaves_that_were_gone_back_over_are_found(case: Case) -> None:
    story = Story(TREE)
    case.tell(story)
    assert _find(story) == case.found


def test_a_parallel_leaf_stays_whatever_comes_later() -> None:
    story = Story(TREE)
    root = _root(story)
    pending = [story.begin(root, "best of two"), story.begin(root, "best of two")]
    for number, each in enumerate(pending):
        story.commit(each, [2], [11 + number])
    story.say([2], [13], after=root, text="something else")
    assert _find(story) == {}


@dataclass(frozen=True, kw_only=True)
class Told:
    """One turn of a random history. Each is asked right before it is answered, or before the turn before is."""

    parent: float
    words: str
    is_sub: bool
    is_delivered: bool
    is_early: bool


told = st.builds(
    Told,
    parent=st.floats(0, 1, exclude_max=True),
    words=st.sampled_from("ab"),
    is_sub=st.integers(0, 3).map(lambda roll: roll == 0),
    is_delivered=st.integers(0, 3).map(bool),
    is_early=st.integers(0, 3).map(lambda roll: roll == 0),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(told, max_size=9))
def test_random_histories_are_read_as_they_were_told(history: list[Told]) -> None:
    story, turns, parents, begun = Story(TREE), [], [], []
    waiting: list[tuple[Told, int | None, object]] = []

    def answer() -> None:
        each, parent, pending = waiting.pop(0)
        number = len(turns)
        turns.append(story.commit(pending, [1], [10 + number], delivered=each.is_delivered, reply=f"R{number}"))
        parents.append(parent)

    for place, each in enumerate(history):
        while waiting and not each.is_early:
            answer()
        at = int(each.parent * (len(turns) + 1)) - 1
        parent = at if at >= 0 else None
        begun.append(len(turns))
        pending = story.begin(
            None if parent is None else turns[parent], each.words, headers=SUB if each.is_sub else None
        )
        waiting.append((each, parent, pending))
        if place == len(history) - 1:
            while waiting:
                answer()

    def is_twin(a: int, b: int) -> bool:
        return parents[a] == parents[b] and (history[a].words, history[a].is_sub) == (
            history[b].words,
            history[b].is_sub,
        )

    def overlap(a: int, b: int) -> bool:
        return begun[max(a, b)] <= min(a, b)

    expected: dict[int, object] = {}
    for leaf in (each for each in range(len(history)) if each not in parents):
        if not history[leaf].is_delivered:
            expected[leaf] = None
            continue
        twins = [each for each in range(len(history)) if each != leaf and is_twin(each, leaf)]
        if any(overlap(each, leaf) for each in twins) and not any(
            each > leaf and not overlap(each, leaf) for each in twins
        ):
            continue
        replacing = [
            each
            for each in range(leaf + 1, len(history))
            if parents[each] == parents[leaf]
            and history[each].is_sub == history[leaf].is_sub
            and (parents[leaf] is not None or history[each].words == history[leaf].words)
            and (history[each].is_delivered or each in parents)
            and not overlap(each, leaf)
        ]
        if replacing:
            expected[leaf] = replacing[0]
    assert {leaf: each.by for leaf, each in find_rollbacks(view_session(story.session)).items()} == expected
