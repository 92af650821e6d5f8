"""The benchmark of growth.

1. It has a figure for every step at every size.
2. What a turn compares does not grow with the equal questions that stand beside it.
"""

from collections.abc import Collection

import pytest

from benchmarks.growth import ask_again, run
from turnkeeper.choices import OnToolsChange, OnTruncated
from turnkeeper.core import Cause, Session, Tree
from turnkeeper.matching import IdPairs, Match, NormalMessage, load_matcher


class CountingMatcher:
    """A matcher that counts how often it is asked."""

    def __init__(self, name: str) -> None:
        self.inner = load_matcher(name)
        self.name = self.inner.name
        self.replies = self.inner.replies
        self.asked = 0

    def match(self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs) -> Match:
        self.asked += 1
        return self.inner.match(stored, replayed, pairs)

    def match_reply(
        self, stored: NormalMessage, replayed: NormalMessage, pairs: IdPairs, forms: Collection[str]
    ) -> Match:
        self.asked += 1
        return self.inner.match_reply(stored, replayed, pairs, forms)


def test_every_step_has_a_figure_at_every_size() -> None:
    figures = run(sizes=(1, 3), runs=1)
    assert all(len(each) == 2 and min(each) > 0 for each in figures.values())


@pytest.mark.parametrize("matcher", ["strict", "tolerant", "role_content_only"])
@pytest.mark.parametrize("on_tools_change", OnToolsChange)
def test_equal_questions_are_not_compared_with_each_other(matcher: str, on_tools_change: OnToolsChange) -> None:
    asked: list[int] = []
    for times in (10, 100):
        counting = CountingMatcher(matcher)
        session = Session.open(Tree(on_tools_change=on_tools_change, on_truncated=OnTruncated.CLOSE), matcher=counting)
        ask_again(session, times)
        assert [turn.why.cause for turn in session.forest.turns[1:]] == [Cause.REPEATED] * (times - 1)
        assert [turn.why.near for turn in session.forest.turns[1:]] == list(range(times - 1))
        asked.append(counting.asked)
    assert asked[1] <= 12 * asked[0]
