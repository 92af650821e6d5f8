"""Turns that a trainer has from an earlier collect.

1. What would train of them is masked ``acknowledged``; what is dropped of them stays dropped, and the fates of all
   other turns stay as they are. A token that one sample masks for its rows, and another does not, is ``acknowledged``.
2. Nothing else of a sample changes, and a sample without loss comes along.
3. A postprocessor cannot give them loss again.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from channelkit import masked_by
from samples.builders import LINEAR, OPTIONS, TREE, Story
from samples.test_forecast import BRANCHING, TOLD
from turnkeeper.choices import OnRecomputed
from turnkeeper.core import Ledger, MaskReason
from turnkeeper.errors import HookError
from turnkeeper.ids import TurnId
from turnkeeper.samples import load_hooks

Tell = Callable[[Story], object]
MASKING = replace(OPTIONS, masked_marks=masked_by(OnRecomputed.MASK))


def check_acknowledged(ledger: Ledger, before: Ledger) -> None:
    """Compare the terms of an acknowledged turn with those that it had before."""
    masked = dict(ledger.masked)
    acknowledged = masked.pop(MaskReason.ACKNOWLEDGED, 0)
    recounted = sum(before.masked.values()) - sum(masked.values())
    assert (ledger.trainable, ledger.dropped) == (0, before.dropped)
    assert acknowledged == before.trainable + recounted
    assert recounted == 0 or (before.trainable and MaskReason.BAD_ROWS in before.masked)
    assert all(count <= before.masked[reason] for reason, count in masked.items())


@pytest.mark.parametrize("budget", [None, 3, 5])
@pytest.mark.parametrize("policy", [LINEAR, TREE], ids=["linear", "tree"])
@pytest.mark.parametrize("tell", TOLD.values(), ids=TOLD.keys())
def test_only_what_would_train_of_acknowledged_turns_is_masked(
    tell: Tell, policy: type[LINEAR] | type[TREE], budget: int | None
) -> None:
    if policy is LINEAR and tell in BRANCHING:
        return
    story = Story(policy)
    tell(story)
    plain = story.collect(MASKING, max_seq_len=budget)
    for known in range(len(story.session.forest.turns) + 1):
        turns = {TurnId(each) for each in range(known)}
        collection = story.collect(MASKING, max_seq_len=budget, acknowledged=turns)
        for ledger, before in zip(collection.turn_ledgers[:known], plain.turn_ledgers, strict=False):
            check_acknowledged(ledger, before)
        assert collection.turn_ledgers[known:] == plain.turn_ledgers[known:]
        assert collection.ledger.unaccounted == 0
        assert len(collection.samples) == len(plain.samples)
        for sample, before in zip(collection.samples, plain.samples, strict=True):
            assert np.array_equal(sample.tokens, before.tokens)
            assert np.array_equal(sample.rollout_log_probs, before.rollout_log_probs)
            assert (sample.loss_mask <= before.loss_mask).all()
            assert (sample.response, sample.status) == (before.response, before.status)


def test_a_postprocessor_cannot_give_loss_again() -> None:
    story = Story(TREE)
    story.say([1], [2, 3])
    options = replace(OPTIONS, hooks=load_hooks(postprocessor="samples.test_acknowledged.raise_mask"))
    story.collect(options)
    with pytest.raises(HookError, match="which is masked: acknowledged"):
        story.collect(options, acknowledged={TurnId(0)})


def raise_mask(samples, metadata):  # type: ignore[no-untyped-def] - a hook as users write it
    for sample in samples:
        sample.loss_mask = [1] * len(sample.loss_mask)
    return samples
