"""What is said of a session's tokens before anyone collects them.

1. It is what a collect by the built-in rules would say, with every kind of mask and cut. (The property stands in
   ``test_properties``.)
2. No hook of the user's is called; another picker than ``drop_retries`` and ``keep_siblings`` is taken for the first.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from channelkit import masked_by
from samples.builders import LINEAR, OPTIONS, TREE, Story, rows_of
from turnkeeper.choices import OnRecomputed
from turnkeeper.core import FinishReason, MaskReason
from turnkeeper.samples import Outcome, load_hooks

Tell = Callable[[Story], object]


def tell_shared(story: Story) -> None:
    first = story.say([1, 2], [3, 4, 5])
    story.say([6], [7], after=first, trim=1, messages=[{"role": "user", "content": "one"}])
    story.say([8], [9, 10], after=first, headers={"x-claude-code-agent-id": "a"})


def tell_retried(story: Story) -> None:
    first = story.say([1], [2, 3])
    story.say([4], [5, 6], after=first, text="again")
    story.say([7], [8], after=first, text="again")


def tell_bad_rows(story: Story) -> None:
    first = story.say([1, 2], [3, 4, 5], rows=rows_of([1, 2, 3, 4]), marks={"bad_rows_from": 2})
    story.say([6], [7, 8], after=first, rows=rows_of([5, 6, 7]))


def tell_recomputed(story: Story) -> None:
    first = story.say([1, 2], [3, 4], marks={"rows_recomputed": True})
    story.say([5], [6], after=first)


def tell_bad_in_one_branch(story: Story) -> None:
    first = story.say([1, 2], [3, 4, 5], rows=rows_of([1, 2, 3, 4]))
    story.say([6], [7], after=first, rows=rows_of([5, 6]), marks={"bad_rows_from": 3})
    story.say([8], [9], after=first, rows=rows_of([5, 6]), headers={"x-claude-code-agent-id": "a"})


def tell_truncated(story: Story) -> None:
    first = story.say([1], [2, 3], finish=FinishReason.LENGTH)
    story.say([4], [5], after=first)


def tell_models(story: Story) -> None:
    first = story.say([1], [2, 3], model="policy")
    second = story.say([4], [5, 6], after=first, model="small")
    story.say([7], [8], after=second, model="policy")
    story.say([9], [10], after=first, model="small", headers={"x-claude-code-agent-id": "a"})


def tell_undelivered(story: Story) -> None:
    first = story.say([1], [2, 3], delivered=False)
    story.say([4], [5], after=first)
    story.say([6], [7], delivered=False)


TOLD: dict[str, Tell] = {
    "nothing": lambda _: None,
    "a turn": lambda story: story.say([1], [2, 3]),
    "shared turns": tell_shared,
    "a retry": tell_retried,
    "bad rows": tell_bad_rows,
    "bad rows in one branch": tell_bad_in_one_branch,
    "recomputed rows": tell_recomputed,
    "a truncated turn": tell_truncated,
    "models": tell_models,
    "undelivered replies": tell_undelivered,
}

BRANCHING = (tell_shared, tell_bad_in_one_branch, tell_models, tell_undelivered)
"""What only a tree takes."""


@pytest.mark.parametrize("budget", [None, 0, 1, 3, 4, 5, 7])
@pytest.mark.parametrize("on_recomputed", [OnRecomputed.KEEP, OnRecomputed.MASK])
@pytest.mark.parametrize("tell", TOLD.values(), ids=TOLD.keys())
def test_the_terms_are_those_of_a_collect(tell: Tell, on_recomputed: OnRecomputed, budget: int | None) -> None:
    for policy in (LINEAR, TREE):
        for past_truncation in (False, True):
            story = Story(policy)
            if policy is LINEAR and tell in BRANCHING:
                continue
            tell(story)
            options = replace(OPTIONS, masked_marks=masked_by(on_recomputed), past_truncation=past_truncation)
            for names in ((), ("policy",)):
                said = story.forecast(options, train_models=names, max_seq_len=budget)
                assert said == Outcome.of(story.collect(options, train_models=names, max_seq_len=budget))


def test_each_kind_of_mask_is_met() -> None:
    """The table above would agree on nothing, too."""
    masked: set[MaskReason] = set()
    for tell, names in ((tell_bad_rows, ()), (tell_recomputed, ()), (tell_models, ("policy",))):
        story = Story(TREE)
        tell(story)
        masked |= story.forecast(
            replace(OPTIONS, masked_marks=masked_by(OnRecomputed.MASK)), train_models=names
        ).ledger.masked.keys()
    assert masked == {MaskReason.BAD_ROWS, MaskReason.ROWS_RECOMPUTED, MaskReason.HOOK}


@pytest.mark.parametrize("picker", ["samples.hookbox.first_only", "drop_retries_same_prompt"])
def test_other_pickers_are_not_asked(picker: str) -> None:
    story = Story(TREE)
    tell_retried(story)
    assert story.forecast(replace(OPTIONS, hooks=load_hooks(picker=picker))) == story.forecast()
